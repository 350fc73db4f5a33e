// The daemon's events, one per line.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice::ctl {

// Events that were shown. Each daemon numbers its events from 1.
struct SeenEvents {
  uint64_t generation = 0;  // the daemon's; 0: none shown yet
  uint64_t last = 0;
};
struct EventLines {
  std::string text;  // whole lines
  SeenEvents seen;   // including these
};

// The events of a snapshot, taken at `now`, that are not in `seen`. A line
// before them says how many events in between were dropped. `as_json`: an
// object per line, as in the snapshot, but with the time of day instead of the
// age. Internal: this version does not know the snapshot's form.
absl::StatusOr<EventLines> RenderEventLines(const std::string& snapshot,
                                            SeenEvents seen, bool as_json,
                                            absl::Time now);

}  // namespace sluice::ctl
