// Formats the daemon's events, one per line.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice::ctl {

// The events that were shown already. Each daemon numbers its events from 1.
struct SeenEvents {
  uint64_t generation = 0;  // of the daemon; 0: no event shown yet
  uint64_t last = 0;
};
struct EventLines {
  std::string text;  // whole lines
  SeenEvents seen;   // includes the events in `text`
};

// Formats the events of a snapshot, taken at `now`, that are not in `seen`; a
// first line states how many in between were dropped. `as_json`: one object per
// line, with the time of day instead of the age. Internal: this version cannot
// read the snapshot.
absl::StatusOr<EventLines> RenderEventLines(const std::string& snapshot,
                                            SeenEvents seen, bool as_json,
                                            absl::Time now);

}  // namespace sluice::ctl
