// Starts the ranks of a run on this node and waits until all have ended. Also
// awaits and ends other child processes, which proto/base/spawn.h starts.
//
// Each rank runs this binary with torchrun's variables. If a rank fails, the
// others have 2 s to end by themselves; then they get SIGTERM, then SIGKILL.
// All are gone 4 s after the first failure. SIGINT, SIGTERM and SIGHUP are
// forwarded once, so that the ranks save and end; a second signal kills them
// (except SIGHUP, of which a closing terminal may send several). If a progress
// page (watch/rank_page.h) shows that its rank is late, the rank is named, and
// after --end-after the run ends.
// Thread safety: one thread, which must be the process's first.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/train/launch/options.h"
#include "client/train/launch/rank_environment.h"

namespace sluice::train {

// Blocks SIGINT, SIGTERM, SIGCHLD and, unless it is ignored, SIGHUP until
// Launch handles them. Call it before actions that must be undone on Ctrl-C.
void HoldSignals();

// Runs `binary arguments` as options.ranks ranks on `gpus` (empty: each rank
// chooses its GPU). Prints the line or object that the user sees, and returns
// the exit status.
int Launch(const RunOptions& options, const std::string& binary,
           const std::vector<std::string>& arguments, const std::string& socket,
           const std::vector<GpuPlace>& gpus = {});

// Returns this process's environment as "NAME=value", with the variables of
// `added` replaced or added.
std::vector<std::string> EnvironmentWith(
    const std::vector<std::pair<std::string, std::string>>& added);

// Waits up to `timeout` for the process's end and reaps it. Returns the wait
// status; nullopt if it has not ended.
std::optional<int> WaitFor(pid_t pid, absl::Duration timeout);
// Sends SIGTERM, and SIGKILL after `grace`; reaps the process.
void EndProcess(pid_t pid, absl::Duration grace);

// Returns whether a signal or a debugger has stopped the process.
bool IsStopped(pid_t pid);

// Formats a wait status as "exit status 3" or "signal 9 (Killed)".
std::string DescribeWaitStatus(int status);

// Returns the folder of this process's binary and Sluice's other binaries.
std::string BinaryFolder();

// Ends this process when its parent `launcher` ends, however that happens.
void DieWithParent(pid_t launcher);

}  // namespace sluice::train
