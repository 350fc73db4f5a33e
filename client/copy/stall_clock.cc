#include "client/copy/stall_clock.h"

#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::client {

void StallClock::UseStream(device::Stream stream) {
  compute_ = stream;
  on_stream_ = true;
}

// Returns whether compute runs on a stream. Without native streams (sim), the
// calling thread computes.
bool StallClock::OnStream() {
  if (!on_stream_.has_value()) {
    on_stream_ = driver_->NativeStream(compute_).ok();
  }
  return *on_stream_;
}

absl::Status StallClock::Begin() {
  if (OnStream()) return timer_.Begin(compute_);
  began_s_ = MonotonicSeconds();
  return absl::OkStatus();
}

absl::Status StallClock::End() {
  if (OnStream()) {
    SLUICE_RETURN_IF_ERROR(timer_.End(compute_));
    TakeEnded();
    return absl::OkStatus();
  }
  total_ns_ += static_cast<int64_t>(1e9 * (MonotonicSeconds() - began_s_));
  return absl::OkStatus();
}

// Adds the completed spans to the total. A lost device reports no more spans;
// waits on it return the fault.
void StallClock::TakeEnded() {
  for (;;) {
    const auto span = timer_.Next();
    if (!span.ok() || !span->has_value()) return;
    total_ns_ += absl::ToInt64Nanoseconds((*span)->length);
  }
}

absl::Duration StallClock::total() {
  TakeEnded();
  return absl::Nanoseconds(total_ns_.load());
}

}  // namespace sluice::client
