// Asking again and again, until Ctrl-C (or q, where it draws).
//
// Thread safety: one call at a time, before there are other threads; SIGINT and
// SIGTERM are theirs while they run.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/ctl/status/render_events.h"

namespace sluice::ctl {

// The snapshot, as JSON.
using Ask = std::function<absl::StatusOr<std::string>()>;

struct Screen {
  bool once = false;  // and wherever stdout is no terminal
  absl::Duration interval;
  std::function<absl::StatusOr<std::string>(const std::string&)> draw;
};
// Draws what it is answered. A daemon that is not there after it was is said in
// the last line, and asked for again. The exit status's fault: the first answer
// was one.
absl::Status Draw(const Ask& ask, const Screen& screen);

struct Following {
  bool follow = false;  // else what there is, and no more
  bool as_json = false;
  absl::Duration interval;
};
absl::Status PrintEvents(const Ask& ask, const Following& following);

}  // namespace sluice::ctl
