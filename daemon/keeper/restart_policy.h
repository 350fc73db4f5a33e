// Decides what follows the daemon's end; pure.
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
  // As a shell has it: 128 and the signal.
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
    std::optional<int> exit;  // the keeper's status; absent: start again
    absl::Duration pause;     // before the start
    bool slower_now = false;  // the first pause of a row, which is logged
  };
  // What is known beside how it ended.
  struct Of {
    bool asked =
        false;  // it was told to, by a signal that the keeper forwarded
    bool holds = false;  // the keeper has something of it
  };
  Verdict Decide(const DaemonEnd& end, Of of, absl::Time now);

 private:
  std::deque<absl::Time> deaths_;  // within the window, oldest first
  bool slow_ = false;
};

}  // namespace sluice::daemon
