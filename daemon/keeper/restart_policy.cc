#include "daemon/keeper/restart_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

namespace sluice::daemon {

std::string DaemonEnd::Text() const {
  if (signal == 0) return fmt::format("exited with status {}", exit_code);
  const char* name = sigabbrev_np(signal);
  return fmt::format("was killed by signal {} (SIG{})", signal,
                     name != nullptr ? name : "?");
}

RestartPolicy::Verdict RestartPolicy::Decide(const DaemonEnd& end, Of of,
                                             absl::Time now) {
  // After bad input the daemon is restarted only if ranks have memory: it can
  // serve them again once an administrator has corrected the input.
  const bool bad_input =
      end.signal == 0 && end.exit_code == kBadInput && !of.holds;
  if (of.asked || bad_input) return {.exit = end.status(), .pause = {}};
  deaths_.push_back(now);
  while (now - deaths_.front() > kWindow) deaths_.pop_front();
  if (deaths_.size() <= kFreeDeaths) {
    slow_ = false;
    return {.exit = {}, .pause = absl::ZeroDuration()};
  }
  // The pause doubles with each further death until it is the longest one.
  const size_t extra = std::min<size_t>(deaths_.size() - kFreeDeaths - 1, 10);
  return {.exit = {},
          .pause = std::min(kLongestPause, kFirstPause * (1 << extra)),
          .slower_now = !std::exchange(slow_, true)};
}

}  // namespace sluice::daemon
