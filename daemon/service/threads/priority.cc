#include "daemon/service/threads/priority.h"

#include <sched.h>
#include <time.h>

namespace sluice::daemon {

bool GoBeforeOthers() {
  const sched_param lowest = {.sched_priority = 1};
  return sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &lowest) == 0;
}

void GoAsOthers() {
  const sched_param none = {.sched_priority = 0};
  // SCHED_RESET_ON_FORK stays set: clearing it needs the same capability as
  // raising priority.
  (void)sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &none);
}

absl::Duration CpuTimeOfThisThread() {
  timespec computed;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &computed);
  return absl::DurationFromTimespec(computed);
}

}  // namespace sluice::daemon
