// The readers of a page.
#pragma once

namespace sluice::daemon {

enum class Audience {
  // All that reach the TCP port: sums, and nothing with a user, a job, a
  // process or a cgroup.
  kAnybody,
  // Users that may open the unix socket.
  kOperators,
};

}  // namespace sluice::daemon
