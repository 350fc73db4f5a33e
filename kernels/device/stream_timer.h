// Measures how long a stream takes for the work between two points. On a GPU
// the host's clock shows when work was issued and not when it ran, so events on
// the stream take the times. Next never waits: a caller that asks between steps
// gets the spans of earlier steps. Events are reused.
//
// A failed call adds no span and returns the driver's error, or
// FailedPrecondition from End without Begin.
//
// Thread safety: thread-safe, but one thread at a time calls Begin and End of a
// span.
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
    // The start on the monotonic clock, too late by the time that Align took to
    // wake up. 0 if Align was not called.
    double start_s = 0;
    absl::Duration length;
  };

  // `driver` outlives the timer.
  explicit StreamTimer(Driver* driver) : driver_(driver) {}
  ~StreamTimer();
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  // Waits until `stream` is idle and reads the host's clock then, so that later
  // spans have a start time. The host waits: call it only between steps.
  absl::Status Align(Stream stream);

  // Begin starts a span after all work enqueued so far; End ends it, on any
  // stream of the same GPU. Begin drops a span that has begun and not ended.
  absl::Status Begin(Stream stream);
  absl::Status End(Stream stream);

  // Removes and returns the oldest ended span, or nullopt if there is none or
  // it has not completed.
  absl::StatusOr<std::optional<Span>> Next();
  // Waits for all ended spans. The host waits: call it only between steps.
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
  // The event that Align recorded, and the host's time when it was reached.
  std::optional<Event> origin_ ABSL_GUARDED_BY(mutex_);
  double origin_s_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::device
