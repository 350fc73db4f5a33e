// The scheduling of the calling thread.
//
// Every rank waits for the loop, and the kernel lets another process on its
// core continue for milliseconds. So the loop has the lowest real-time
// priority, like the thread that refills the grant pages, while it computes
// little. A loop that a flood of requests keeps busy loses it until it is less
// busy, so that it takes no core from the node's training.
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

absl::Duration CpuTimeOfThisThread();

// Decides when the loop's thread has priority. Pure.
class Urgency {
 public:
  static constexpr absl::Duration kWindow = absl::Milliseconds(100);
  static constexpr double kMost = 0.75;  // fraction of a core, within a window

  // Returns whether the thread should have priority. Must be called at least
  // once per kWindow while the thread computes. `cpu` is the thread's CPU time
  // since it began, at the time `now`, which must not go back.
  bool IsUrgent(absl::Time now, absl::Duration cpu) {
    if (now < end_) return urgent_;
    if (begin_ != absl::InfinitePast()) {
      urgent_ = cpu - cpu_at_begin_ <= kMost * (now - begin_);
    }
    begin_ = now;
    end_ = now + kWindow;
    cpu_at_begin_ = cpu;
    return urgent_;
  }
  absl::Time next() const { return end_; }

 private:
  bool urgent_ = true;
  absl::Time begin_ = absl::InfinitePast();
  absl::Time end_ = absl::InfinitePast();
  absl::Duration cpu_at_begin_ = absl::ZeroDuration();
};

}  // namespace sluice::daemon
