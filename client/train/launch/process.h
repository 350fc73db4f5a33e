// Starts child processes by posix_spawn, and ends them.
//
// Why posix_spawn and never fork: a forked copy of a process that maps leased
// memory would keep that memory, and torch's threads do not survive a fork.
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
  // A process group of its own: Ctrl-C at the terminal does not reach it.
  bool own_group = false;
  int stdout_fd = -1;  // -1: inherited
  int stderr_fd = -1;
  int inherited_fd = -1;  // stays open in the child under its number
};

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// Returns the wait status and reaps the process if it has ended; else nullopt.
std::optional<int> TryWait(pid_t pid);
// As TryWait, but waits up to `timeout` for the end.
std::optional<int> WaitFor(pid_t pid, absl::Duration timeout);
// Sends SIGTERM, and SIGKILL after `grace`; reaps the process.
void EndProcess(pid_t pid, absl::Duration grace);

// Returns whether a signal or a debugger has stopped the process, and it has
// not ended.
bool IsStopped(pid_t pid);

// Formats a wait status as "exit status 3" or "signal 9 (Killed)".
std::string DescribeWaitStatus(int status);

// Returns the folder of this process's binary, where the other binaries are.
std::string BinaryFolder();

// Ends this process when its parent `launcher` ends, however that happens.
void DieWithParent(pid_t launcher);

}  // namespace sluice::train
