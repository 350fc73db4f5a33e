// Child processes by posix_spawn, and the temporary folder of a run.
//
// Why posix_spawn and never fork: a forked copy of a process that maps leased
// memory would hold it, and torch's threads do not survive a fork.
// Thread safety: one thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice::train {

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] is the binary's path
  std::vector<std::pair<std::string, std::string>> environment;  // added
  // A group of its own: Ctrl-C at the terminal does not reach it.
  bool own_group = false;
  int stdout_fd = -1;  // -1: inherited
  int stderr_fd = -1;
  int inherited_fd = -1;  // stays open in the child under its number
};

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// The wait status once it ended (then it is reaped); nullopt: still running.
std::optional<int> TryWait(pid_t pid);
// Waits up to `timeout`.
std::optional<int> WaitFor(pid_t pid, absl::Duration timeout);
// SIGTERM, and SIGKILL after `grace`; reaps it.
void EndProcess(pid_t pid, absl::Duration grace);

// Stopped by a signal or a debugger, and not ended.
bool IsStopped(pid_t pid);

// "exit status 3", "signal 9 (Killed)".
std::string DescribeWaitStatus(int status);

// The folder of this process's binary: its siblings are the other binaries.
std::string BinaryFolder();

// Ends this process when its parent `launcher` ends, however that happens.
void DieWithParent(pid_t launcher);

}  // namespace sluice::train
