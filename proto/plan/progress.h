// How far a plan worker is: one line in a memfd that the worker overwrites and
// the daemon reads when a client asks.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/base/units.h"

namespace sluice::plan {

struct PlanProgress {
  int64_t done = 0;     // segments planned,
  int64_t all = 0;      // of so many
  std::string segment;  // that is being planned
  std::string arm;      // of the solver: "greedy", "search", "cbc"
  Bytes peak;           // of the best plan of it so far
  Bytes lower_bound;    // and what is proved
  bool operator==(const PlanProgress&) const = default;
};

inline constexpr size_t kProgressBytes = 512;

// kProgressBytes long, with a checksum: a reader may come in the middle of a
// write.
std::string WriteProgress(const PlanProgress& progress);
// nullopt: nothing yet, or half written.
std::optional<PlanProgress> ReadProgress(std::string_view bytes);

}  // namespace sluice::plan
