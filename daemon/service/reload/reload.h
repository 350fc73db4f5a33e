// Handles SIGHUP. A daemon does not change its configuration while it runs: it
// ends in order, and the next daemon reads the configuration and takes over.
// Before that, a child process checks whether the next daemon would start and
// take over (`--check-config --check-state`).
//
// Thread safety: loop's thread.
#pragma once

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
  // `check` has the child's program and arguments; the child is killed after 30
  // s. `done` runs on the loop, with OK or with FailedPrecondition and the
  // child's line.
  Reload(std::vector<std::string> check, Loop* loop,
         std::function<void(absl::Status)> done)
      : check_(std::move(check)), loop_(loop), done_(std::move(done)) {}
  ~Reload() { Stop(); }
  Reload(const Reload&) = delete;

  // Starts a check. If one is running, starts another one after it, so that the
  // current file is read.
  void Ask();
  // Kills the child without calling `done`; returns its wait status.
  int Stop();
  absl::Time deadline() const { return deadline_; }
  void Expire(absl::Time now);

 private:
  void OnEnd();

  const std::vector<std::string> check_;
  Loop* const loop_;
  const std::function<void(absl::Status)> done_;
  pid_t pid_ = 0;  // 0: none runs
  UniqueFd life_, said_;
  bool again_ = false;
  // When to kill the child; InfiniteFuture if none runs, or it was killed.
  absl::Time deadline_ = absl::InfiniteFuture();
};

}  // namespace sluice::daemon
