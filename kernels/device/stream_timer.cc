#include "kernels/device/stream_timer.h"

#include <utility>

#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::device {

StreamTimer::~StreamTimer() {
  const MutexLock lock(mutex_);
  for (const Event event : all_) {
    driver_->DestroyEvent(event).IgnoreError();  // the device may be lost
  }
}

absl::StatusOr<Event> StreamTimer::Record(Stream stream) {
  if (free_.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const Event made, driver_->CreateTimedEvent());
    all_.push_back(made);
    free_.push_back(made);
  }
  const Event event = free_.back();
  SLUICE_RETURN_IF_ERROR(driver_->RecordEvent(event, stream));
  free_.pop_back();
  return event;
}

absl::Status StreamTimer::Align(Stream stream) {
  const MutexLock lock(mutex_);
  if (origin_.has_value()) free_.push_back(*std::exchange(origin_, {}));
  SLUICE_ASSIGN_OR_RETURN(const Event origin, Record(stream));
  const absl::Status reached = driver_->SynchronizeEvent(origin);
  origin_s_ = MonotonicSeconds();
  if (!reached.ok()) {
    free_.push_back(origin);
    return reached;
  }
  origin_ = origin;
  return absl::OkStatus();
}

absl::Status StreamTimer::Begin(Stream stream) {
  const MutexLock lock(mutex_);
  if (begun_.has_value()) free_.push_back(*std::exchange(begun_, {}));
  SLUICE_ASSIGN_OR_RETURN(begun_, Record(stream));
  return absl::OkStatus();
}

absl::Status StreamTimer::End(Stream stream) {
  const MutexLock lock(mutex_);
  if (!begun_.has_value()) {
    return absl::FailedPreconditionError("End without a span that has begun");
  }
  SLUICE_ASSIGN_OR_RETURN(const Event to, Record(stream));
  ended_.push_back({*std::exchange(begun_, {}), to});
  return absl::OkStatus();
}

absl::StatusOr<std::optional<StreamTimer::Span>> StreamTimer::Next() {
  const MutexLock lock(mutex_);
  if (ended_.empty()) return std::nullopt;
  const Events events = ended_.front();
  SLUICE_ASSIGN_OR_RETURN(const auto length,
                          driver_->ElapsedTime(events.from, events.to));
  if (!length.has_value()) return std::nullopt;
  Span span{.length = *length};
  if (origin_.has_value()) {
    SLUICE_ASSIGN_OR_RETURN(const auto since,
                            driver_->ElapsedTime(*origin_, events.from));
    // The value exists: the span's end is reached, so its start is too.
    span.start_s =
        origin_s_ + absl::ToDoubleSeconds(since.value_or(absl::ZeroDuration()));
  }
  ended_.pop_front();
  free_.push_back(events.from);
  free_.push_back(events.to);
  return span;
}

absl::Status StreamTimer::Await() {
  std::optional<Event> last;
  {
    const MutexLock lock(mutex_);
    if (!ended_.empty()) last = ended_.back().to;
  }
  // Waits without the lock, so that other calls are not delayed. If the event
  // is recorded again meanwhile, the wait only gets longer.
  return last.has_value() ? driver_->SynchronizeEvent(*last) : absl::OkStatus();
}

}  // namespace sluice::device
