// A real sluiced with the test as its keeper: the test decides when the daemon
// dies, which of its messages are received, and which are lost.
#pragma once

#include <sys/types.h>

#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "daemon/keeper/daemon_process.h"
#include "daemon/keeper/notify_receiver.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sluice::testing {

class KeptDaemon {
 public:
  // Does not start the daemon. HTTP is off unless `toml` enables it. The keeper
  // stores `capacity` descriptors.
  explicit KeptDaemon(const std::string& toml = "", int64_t capacity = 4000);
  ~KeptDaemon();
  KeptDaemon(const KeptDaemon&) = delete;

  // Sets the program of later starts; the default is sluiced.
  void Use(const std::string& program) { program_ = program; }
  // Starts the daemon with all kept descriptors and waits until it serves;
  // fails the test otherwise.
  void Start();
  // Starts a daemon that must fail. Returns its exit status.
  int StartThatFails();
  // Kills the daemon with SIGKILL. Messages that it has sent are received
  // first, unless Ignore was called.
  void Kill();
  void KillAndStart() {
    Kill();
    Start();
  }
  // Waits for the daemon's end and returns its exit status, or -1 if it does
  // not end within 120 s.
  int Join();

  // Checks whether this program would take over from the running daemon.
  ChildResult CheckState(const std::string& program = "sluiced",
                         const std::string& config = "sluiced.toml") const;

  // Receives no message of the daemon until Answer or the daemon's death.
  void Ignore();
  // Ends Ignore. Messages sent since Ignore are received, too.
  void Answer();
  // Receives `messages` + 1 more messages of the daemon, then kills the daemon;
  // later messages are lost. -1 means never.
  void KillBehind(int messages);
  // Returns whether KillBehind has killed the daemon; then call Join(). Also
  // true after Ignore.
  bool WasKilled() const;
  bool Has(const std::string& name) const;
  // Returns the number of kept descriptors with names that begin with `prefix`.
  int Count(const std::string& prefix) const;
  // Waits until the descriptor is not kept. Returns false after 120 s.
  bool WaitUntilGone(const std::string& name) const;
  // Waits until the descriptor is kept. Returns false after 120 s.
  bool WaitUntilKept(const std::string& name) const;
  // Removes a kept descriptor.
  void Lose(const std::string& name);
  // Keeps a descriptor as if a daemon had sent it.
  void Put(const std::string& name, UniqueFd fd);
  UniqueFd Copy(const std::string& name) const;

  std::string File(const std::string& name) const {
    return directory_.File(name);
  }
  std::string socket() const { return File("session.sock"); }
  pid_t pid() const { return pid_; }
  // Returns the log of this daemon and its predecessors.
  std::string Log() const;
  // Waits for `text` in the log, which a thread of the daemon writes.
  bool WaitForLog(const std::string& text) const;

 private:
  void Fork();
  void Pump();
  void TakeMessages() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WaitFor(const std::string& name, bool kept) const;

  TempDir directory_;
  std::string program_ = "sluiced";
  daemon::NotifyReceiver receiver_;
  pid_t pid_ = 0;  // 0 if no daemon runs
  mutable Mutex mutex_;
  std::unique_ptr<daemon::KeptDescriptors> kept_ ABSL_GUARDED_BY(mutex_);
  bool ignoring_ ABSL_GUARDED_BY(mutex_) = false;
  int kill_behind_ ABSL_GUARDED_BY(mutex_) = -1;  // see KillBehind
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread pump_;  // started last: it uses the members above
};

}  // namespace sluice::testing
