// Decides what the keeper does when the daemon has ended. Pure.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace sluice::daemon {

// How a process ended.
struct DaemonEnd {
  int exit_code = 0;
  int signal = 0;  // 0: it exited
  // The shell's status: 128 + the signal.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
  std::string Text() const;  // "exited with status 2"
};

class RestartPolicy {
 public:
  static constexpr int kBadInput = 2;  // sluiced's exit status
  static constexpr size_t kFreeDeaths = 5;
  static constexpr absl::Duration kWindow = absl::Seconds(10);
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
  static constexpr absl::Duration kLongestPause = absl::Seconds(1);

  struct Verdict {
    std::optional<int> exit;  // the keeper's status; unset: start again
    absl::Duration pause;     // before the start
    bool slower_now = false;  // the first pause of several; logged
  };
  // The circumstances of the daemon's end.
  struct Of {
    bool asked = false;  // the keeper forwarded a signal to end it
    bool holds = false;  // the keeper holds descriptors of it
  };
  Verdict Decide(const DaemonEnd& end, Of of, absl::Time now);

 private:
  std::deque<absl::Time> deaths_;  // within the window, oldest first
  bool slow_ = false;
};

}  // namespace sluice::daemon
