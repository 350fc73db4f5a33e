// Decides when the loop's thread runs before the machine's other work.
//
// Every rank waits for the loop, and the kernel lets another process on its
// core go on for milliseconds before it (a tick, in a kernel that does not
// preempt), however low the loop's own use is. So it has the lowest real-time
// priority, as the thread that refills the grant pages has, while it computes
// little. A loop that is kept busy by a flood of requests loses the priority
// until it is less busy: it takes no core from the node's training.
//
// Pure policy: the caller tells the time and what its thread has computed.
#pragma once

#include "absl/time/time.h"

namespace sluice::daemon {

class Urgency {
 public:
  static constexpr absl::Duration kWindow = absl::Milliseconds(100);
  static constexpr double kMost = 0.75;  // of a core, in a window

  // Must be called at least each kWindow while the thread computes. `cpu`: its
  // CPU time since it began, as of `now`, which does not go back.
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
  // The answer stays the same until then.
  absl::Time next() const { return end_; }

 private:
  bool urgent_ = true;
  absl::Time begin_ = absl::InfinitePast();
  absl::Time end_ = absl::InfinitePast();
  absl::Duration cpu_at_begin_ = absl::ZeroDuration();
};

}  // namespace sluice::daemon
