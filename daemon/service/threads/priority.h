// The scheduling of the calling thread.
#pragma once

#include "absl/time/time.h"

namespace sluice::daemon {

// Takes the lowest real-time priority, which is above all threads without one.
// False if the kernel does not allow it (CAP_SYS_NICE, LimitRTPRIO=; a cgroup
// without real-time): nothing has changed. Threads and processes that it starts
// do not inherit it.
bool GoBeforeOthers();
// Gives real time up; the nice value stays as it was.
void GoAsOthers();

// The CPU time of this thread since it began.
absl::Duration CpuTimeOfThisThread();

}  // namespace sluice::daemon
