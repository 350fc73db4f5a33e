// A real sluiced that has the test as its keeper: the test says when the daemon
// dies, which of its messages are taken, and what of that is lost.
#pragma once

#include <sys/types.h>

#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "daemon/keeper/daemon_process.h"
#include "daemon/keeper/kept_descriptors.h"
#include "daemon/keeper/notify_receiver.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sluice::testing {

class KeptDaemon {
 public:
  // Does not start it. HTTP is off unless the text switches it on.
  explicit KeptDaemon(const std::string& toml = "", int64_t capacity = 4000);
  ~KeptDaemon();
  KeptDaemon(const KeptDaemon&) = delete;

  // The next start is of this program: sluiced until then.
  void Use(const std::string& program) { program_ = program; }
  // With all that is kept; returns when it serves, fails the test otherwise.
  void Start();
  // The same of a start that must fail; its exit status.
  int StartThatFails();
  // SIGKILL. What it sent before is taken first, unless Ignore came.
  void Kill();
  void KillAndStart() {
    Kill();
    Start();
  }
  // The exit status of a daemon that ends by itself; -1: not within 20 s.
  int Join();

  // Whether this program would take over from the one that runs.
  ChildResult CheckState(const std::string& program = "sluiced",
                         const std::string& config = "sluiced.toml") const;

  // From here to its death, or to Answer, nothing that it sends is taken or
  // answered.
  void Ignore();
  void Answer();  // also what it sent meanwhile
  // It is killed when so many more of its messages have been taken, and what it
  // sent behind them is lost.
  void KillBehind(int messages);
  // Whether that has come about; Join() then.
  bool WasKilled() const;
  bool Has(const std::string& name) const;
  // How many are kept with names that begin so.
  int Count(const std::string& prefix) const;
  // Whether it is soon.
  bool WaitUntilGone(const std::string& name) const;
  bool WaitUntilKept(const std::string& name) const;
  void Lose(const std::string& name);
  // Put there as if a daemon had.
  void Put(const std::string& name, UniqueFd fd);
  UniqueFd Copy(const std::string& name) const;

  std::string File(const std::string& name) const {
    return directory_.File(name);
  }
  std::string socket() const { return File("session.sock"); }
  pid_t pid() const { return pid_; }
  // All that it and its predecessors logged.
  std::string Log() const;
  // Whether that is in it soon: it is written by a thread of its own.
  bool WaitForLog(const std::string& text) const;

 private:
  void Fork();
  void Pump();
  void TakeMessages() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WaitFor(const std::string& name, bool kept) const;

  TempDir directory_;
  std::string program_ = "sluiced";
  daemon::NotifyReceiver receiver_;
  pid_t pid_ = 0;  // 0: none runs
  mutable Mutex mutex_;
  std::unique_ptr<daemon::KeptDescriptors> kept_ ABSL_GUARDED_BY(mutex_);
  bool ignoring_ ABSL_GUARDED_BY(mutex_) = false;
  int kill_behind_ ABSL_GUARDED_BY(mutex_) = -1;  // messages; -1: never
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread pump_;  // last: it uses the rest
};

}  // namespace sluice::testing
