// Identifiers that cannot be mixed up by mistake.
//
// Ids are never reused within one daemon generation. Thread safety: values.
#pragma once

#include <compare>
#include <cstdint>
#include <ostream>
#include <utility>

namespace sluice {

// `Tag` only distinguishes types; `Id<A>` and `Id<B>` do not compare.
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

// Small ordinals of the node: the i-th GPU, the i-th NUMA node, the i-th rank
// of a job. These are distinct types too.
using DeviceIndex = Id<struct DeviceTag>;
using NumaIndex = Id<struct NumaTag>;
using Rank = Id<struct RankTag>;

}  // namespace sluice
