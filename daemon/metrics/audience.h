// Who reads a page.
#pragma once

namespace sluice::daemon {

enum class Audience {
  // Whoever reaches the TCP port: sums, and nothing with a user, a job, a
  // process or a cgroup.
  kAnybody,
  // Who may open the unix socket.
  kOperators,
};

}  // namespace sluice::daemon
