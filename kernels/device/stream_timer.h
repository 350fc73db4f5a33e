// How long a stream takes for what is enqueued between two points of it, told
// later: on a GPU the host's clock says when work was issued, not when it ran.
//
// Begin and End record timed events. Next returns the oldest span that the
// stream has completed and never waits, so a caller that asks between steps
// gets the spans of the steps before. Events are used again.
//
// Errors: the driver's. A call that failed has left no span.
// Thread safety: safe; the Begin and End of a span come from one thread at a
// time.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/device/driver.h"
#include "proto/base/mutex.h"

namespace sluice::device {

class StreamTimer {
 public:
  struct Span {
    // Seconds on the monotonic clock, to about what a host wait takes; 0: not
    // aligned.
    double start_s = 0;
    absl::Duration length;
  };

  // `driver` outlives it.
  explicit StreamTimer(Driver* driver) : driver_(driver) {}
  ~StreamTimer();
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  // From now on spans say when they began, by the host's clock at the end of
  // `stream`. A host wait: between steps only.
  absl::Status Align(Stream stream);

  // A span begins or ends behind all that is enqueued so far. Both on streams
  // of one GPU; one that has begun is given up by the next that begins.
  absl::Status Begin(Stream stream);
  absl::Status End(Stream stream);

  // The oldest that has ended; nothing: none, or it is not reached yet.
  absl::StatusOr<std::optional<Span>> Next();
  // Until all that have ended are reached. A host wait: between steps only.
  absl::Status Await();

 private:
  struct Events {
    Event from, to;
  };

  absl::StatusOr<Event> Record(Stream stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Driver* const driver_;
  Mutex mutex_;
  std::vector<Event> all_ ABSL_GUARDED_BY(mutex_);
  std::vector<Event> free_ ABSL_GUARDED_BY(mutex_);
  std::optional<Event> begun_ ABSL_GUARDED_BY(mutex_);
  std::deque<Events> ended_ ABSL_GUARDED_BY(mutex_);
  // Reached at this time of the host.
  std::optional<Event> origin_ ABSL_GUARDED_BY(mutex_);
  double origin_s_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::device
