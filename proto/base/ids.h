// Identifiers of distinct types, so that the compiler refuses mixed-up ones.
// Ids are never reused within one daemon generation.
#pragma once

#include <compare>
#include <cstdint>
#include <ostream>
#include <utility>

namespace sluice {

template <typename Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(uint64_t value) : value_(value) {}

  constexpr uint64_t value() const { return value_; }
  constexpr auto operator<=>(const Id&) const = default;

  template <typename H>
  friend H AbslHashValue(H h, Id id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& out, Id id) {
    return out << id.value_;
  }

 private:
  uint64_t value_ = 0;
};

using SessionId = Id<struct SessionTag>;
using LeaseId = Id<struct LeaseTag>;
using ExtentId = Id<struct ExtentTag>;
using PlanId = Id<struct PlanTag>;

// Ordinals of the node's GPUs, of its NUMA nodes, and of a job's ranks.
using DeviceIndex = Id<struct DeviceTag>;
using NumaIndex = Id<struct NumaTag>;
using Rank = Id<struct RankTag>;

}  // namespace sluice
