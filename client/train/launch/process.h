// Watches and ends child processes, which proto/base/spawn.h starts.
// Thread safety: one thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace sluice::train {

// Returns this process's environment as "NAME=value", with the variables of
// `added` replaced or added.
std::vector<std::string> EnvironmentWith(
    const std::vector<std::pair<std::string, std::string>>& added);

// Returns the wait status and reaps the process if it has ended; else nullopt.
std::optional<int> TryWait(pid_t pid);
// As TryWait, but waits up to `timeout` for the end.
std::optional<int> WaitFor(pid_t pid, absl::Duration timeout);
// Sends SIGTERM, and SIGKILL after `grace`; reaps the process.
void EndProcess(pid_t pid, absl::Duration grace);

// Returns whether a signal or a debugger has stopped the process.
bool IsStopped(pid_t pid);

// Formats a wait status as "exit status 3" or "signal 9 (Killed)".
std::string DescribeWaitStatus(int status);

// Returns the folder of this process's binary and the others.
std::string BinaryFolder();

// Ends this process when its parent `launcher` ends, however that happens.
void DieWithParent(pid_t launcher);

}  // namespace sluice::train
