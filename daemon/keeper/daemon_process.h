// The running daemon. It is started as systemd would start it: it inherits
// named descriptors with numbers from 3 on.
//
// Thread safety: none needed; the keeper has one thread.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/keeper/notify_receiver.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Writes the keeper's line to standard error. Never waits and never fails: a
// line without a reader or room is lost, because a reader of these lines must
// neither end nor delay the keeper. SIGPIPE must be ignored.
void Say(const std::string& text);

struct DaemonEnd {
  int exit_code = 0;
  int signal = 0;  // 0: it exited
  // As in a shell: 128 + the signal, or the exit status.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
  std::string Text() const;  // "exited with status 2"
};

// Decides what the keeper does when the daemon has ended. Pure.
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
    bool slower_now = false;  // true at the first of several pauses
  };
  struct Of {
    bool asked = false;  // the keeper forwarded a signal to end it
    bool holds = false;  // the keeper holds descriptors of it
  };
  Verdict Decide(const DaemonEnd& end, Of of, absl::Time now);

 private:
  std::deque<absl::Time> deaths_;  // within the window, oldest first
  bool slow_ = false;
};

class DaemonProcess {
 public:
  // Starts argv[0] with $NOTIFY_SOCKET, $LISTEN_FDS, $LISTEN_FDNAMES, $FDSTORE
  // and $SLUICE_KEEPER_PID, in a process group of its own: a terminal's Ctrl-C
  // reaches only the keeper, which forwards it. Blocked signals stay blocked,
  // so that none ends the daemon before it can remove its sockets. If the
  // program cannot be run, the process writes a line to stderr; its status is
  // 127.
  static absl::StatusOr<DaemonProcess> Start(
      const std::vector<std::string>& argv, const std::string& notify_socket,
      const KeptDescriptors& kept);

  pid_t pid() const { return pid_; }
  int fd() const { return life_.get(); }  // readable when it has ended
  bool HasEnded() const;
  void Signal(int signal) const { kill(pid_, signal); }
  // Sends the signal with kEndsService: the service ends with the daemon.
  void EndService(int signal) const;
  // Kills all processes that the daemon started and that are still in its
  // process group.
  void KillGroup() const { kill(-pid_, SIGKILL); }
  // Returns how the daemon ended, and kills the rest of its process group. The
  // pid stays reserved until Reap.
  DaemonEnd End() const;
  // Releases the pid. The kernel then drops the process's /proc entries, which
  // takes some milliseconds if thousands of descriptors were inspected there.
  void Reap() const { waitpid(pid_, nullptr, 0); }

 private:
  DaemonProcess(pid_t pid, UniqueFd life) : pid_(pid), life_(std::move(life)) {}

  pid_t pid_;
  UniqueFd life_;  // a pidfd
};

}  // namespace sluice::daemon
