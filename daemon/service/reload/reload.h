// SIGHUP: reloads the configuration.
//
// A daemon does not change under its sessions. It ends in order, and the next
// one, which reads the file, takes over: ranks do not notice. So that a reload
// never ends in a daemon that does not start, a child checks before that one
// would start, and would go on from what this one knows (`--check-config
// --check-state`), while this one serves on.
//
// Thread safety: loop's thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/service/threads/loop.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class Reload {
 public:
  // The child is killed after that.
  static constexpr absl::Duration kLongest = absl::Seconds(30);

  // `check` is the child's program and arguments. `done` is called on the loop
  // with its result: OK, or FailedPrecondition with its line.
  Reload(std::vector<std::string> check, Loop* loop,
         std::function<void(absl::Status)> done);
  ~Reload() { Stop(); }
  Reload(const Reload&) = delete;

  // While a child runs, another one is queued behind it, which sees the file as
  // it is now.
  void Ask();
  void Stop();  // kills the child; `done` is not called
  absl::Time deadline() const { return deadline_; }
  void Expire(absl::Time now);

 private:
  absl::Status Start();
  void OnEnd();
  // Forgets the child, which has ended or is killed.
  int Reap();
  absl::Status Said(int status) const;

  const std::vector<std::string> check_;
  Loop* const loop_;
  const std::function<void(absl::Status)> done_;
  pid_t pid_ = 0;  // 0: none runs
  UniqueFd life_;
  UniqueFd errors_;  // what it writes there, in memory
  bool again_ = false;
  bool late_ = false;  // it was killed
  absl::Time deadline_ = absl::InfiniteFuture();
};

}  // namespace sluice::daemon
