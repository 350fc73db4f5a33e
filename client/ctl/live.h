// Repeats a query until Ctrl-C, or q on a drawn screen.
// Thread safety: one call at a time, before other threads start; the calls
// handle SIGINT and SIGTERM while they run.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/ctl/status/render.h"

namespace sluice::ctl {

// Returns the snapshot as JSON.
using Ask = std::function<absl::StatusOr<std::string>()>;

struct Screen {
  bool once = false;  // draw once; implied if stdout is no terminal
  absl::Duration interval;
  std::function<absl::StatusOr<std::string>(const std::string&)> draw;
};
// Draws the answers, and states if a daemon has disappeared. Returns an error
// only if the first query failed.
absl::Status Draw(const Ask& ask, const Screen& screen);

struct Following {
  bool follow = false;  // false: print the events so far, then end
  bool as_json = false;
  absl::Duration interval;
};
absl::Status PrintEvents(const Ask& ask, const Following& following);

}  // namespace sluice::ctl
