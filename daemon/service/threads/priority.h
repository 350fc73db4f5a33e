// The scheduling of the calling thread.
#pragma once

#include "absl/time/time.h"

namespace sluice::daemon {

// Gives the thread the lowest real-time priority, which is above all threads
// without one. Returns false, with nothing changed, if the kernel does not
// allow it (CAP_SYS_NICE, LimitRTPRIO=; a cgroup without real-time). Threads
// and processes that the thread starts do not inherit the priority.
bool GoBeforeOthers();
// Gives up real-time priority; the nice value stays.
void GoAsOthers();

// Returns the CPU time of this thread since it began.
absl::Duration CpuTimeOfThisThread();

}  // namespace sluice::daemon
