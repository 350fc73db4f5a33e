// The progress of a plan worker: one line in a memfd, which the worker
// overwrites and the daemon reads when a client asks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/base/units.h"

namespace sluice::plan {

struct PlanProgress {
  int64_t done = 0;     // number of planned segments
  int64_t all = 0;      // number of all segments
  std::string segment;  // the segment being planned
  std::string arm;      // the current solver, such as "sweep" or "cbc"
  Bytes peak;           // peak of the segment's best plan so far
  Bytes lower_bound;    // the best bound proved so far
  bool operator==(const PlanProgress&) const = default;
};

inline constexpr size_t kProgressBytes = 512;

// Returns kProgressBytes bytes. They include a checksum, because a reader may
// read during a write.
std::string WriteProgress(const PlanProgress& progress);
// Returns nullopt if there is no progress yet or the line is half written.
std::optional<PlanProgress> ReadProgress(std::string_view bytes);

}  // namespace sluice::plan
