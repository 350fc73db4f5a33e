#include "client/ctl/bandwidth/copy_flow.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "proto/base/status.h"

namespace sluice::ctl {
namespace {

using device::CopyDirection;

constexpr int kLeastCopies = 8;  // copies per measured number
constexpr absl::Duration kNap = absl::Microseconds(50);

}  // namespace

CopyFlow::~CopyFlow() {
  if (stream_.value() != 0) {
    driver_.SynchronizeStream(stream_).IgnoreError();
    driver_.DestroyStream(stream_).IgnoreError();
  }
  for (const device::Event event : events_) {
    if (event.value() != 0) driver_.DestroyEvent(event).IgnoreError();
  }
}

absl::Status CopyFlow::Start() {
  SLUICE_ASSIGN_OR_RETURN(stream_, driver_.CreateStream(range_.device));
  for (device::Event& event : events_) {
    SLUICE_ASSIGN_OR_RETURN(event, driver_.CreateEvent());
  }
  begin_ = clock_.Now();
  for (size_t i = 0; i < kAhead; ++i) SLUICE_RETURN_IF_ERROR(Enqueue());
  return absl::OkStatus();
}

absl::StatusOr<bool> CopyFlow::Go(const Window& window) {
  bool any = false;
  for (size_t i = 0; i < kAhead; ++i) {
    SLUICE_ASSIGN_OR_RETURN(const bool done,
                            driver_.QueryEvent(events_[next_]));
    if (!done) break;
    any = true;
    Count(window);
    SLUICE_RETURN_IF_ERROR(Enqueue());
  }
  return any;
}

// Enqueues a copy and reuses the event of the oldest one, which is done.
absl::Status CopyFlow::Enqueue() {
  const bool to_gpu = range_.direction == CopyDirection::kHostToDevice;
  SLUICE_RETURN_IF_ERROR(driver_.CopyAsync(
      to_gpu ? range_.gpu : range_.host, to_gpu ? range_.host : range_.gpu,
      range_.size, range_.direction, stream_));
  SLUICE_RETURN_IF_ERROR(driver_.RecordEvent(events_[next_], stream_));
  next_ = (next_ + 1) % kAhead;
  return absl::OkStatus();
}

void CopyFlow::Count(const Window& window) {
  const absl::Time now = clock_.Now();
  if (!counted_from_) {
    if (now - begin_ >= window.warm_up) counted_from_ = now;
    return;
  }
  ++counted_;
  const absl::Duration took = now - *counted_from_;
  if (rate_ > 0 || counted_ < kLeastCopies || took < window.average_over) {
    return;
  }
  rate_ = counted_ * static_cast<double>(range_.size.count()) /
          absl::ToDoubleSeconds(took);
}

absl::Status MeasureAtOnce(const std::vector<std::unique_ptr<CopyFlow>>& flows,
                           const CopyFlow::Window& window) {
  for (const auto& flow : flows) SLUICE_RETURN_IF_ERROR(flow->Start());
  const auto measured = [](const auto& flow) { return flow->rate() > 0; };
  while (!std::ranges::all_of(flows, measured)) {
    bool any = false;
    for (const auto& flow : flows) {
      SLUICE_ASSIGN_OR_RETURN(const bool went, flow->Go(window));
      any |= went;
    }
    if (!any) absl::SleepFor(kNap);
  }
  return absl::OkStatus();
}

}  // namespace sluice::ctl
