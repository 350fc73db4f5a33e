// The daemon's events, one per line.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice::ctl {

// Events are numbered from 1 by each daemon.
struct SeenEvents {
  uint64_t generation = 0;  // of the daemon; 0: none was seen
  uint64_t last = 0;
};
struct EventLines {
  std::string text;  // whole lines
  SeenEvents seen;   // with these
};

// The events of a snapshot, taken at `now`, that are not in `seen`. A line
// before them says how many between are not kept any more. `as_json`: an object
// per line, as in the snapshot, with the time of day in the place of the age.
// Internal: the snapshot is not what this version knows.
absl::StatusOr<EventLines> RenderEventLines(const std::string& snapshot,
                                            SeenEvents seen, bool as_json,
                                            absl::Time now);

}  // namespace sluice::ctl
