// The calling thread's place among all that want its core.
#pragma once

#include "absl/time/time.h"

namespace sluice::daemon {

// The lowest real-time priority: before all that has none. False where the
// kernel does not allow it (CAP_SYS_NICE, LimitRTPRIO=; a cgroup without
// real-time): nothing has changed. Threads and processes that it starts do not
// inherit it.
bool GoBeforeOthers();
// Back among those without real time, as nice as before.
void GoAsOthers();

// What it has computed since it began.
absl::Duration CpuTimeOfThisThread();

}  // namespace sluice::daemon
