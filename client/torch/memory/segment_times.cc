#include "client/torch/memory/segment_times.h"

#include <utility>

#include "proto/base/clock.h"

namespace sluice::runtime {

void SegmentTimes::UseStream(device::Driver* driver, device::Stream stream) {
  timer_ = std::make_shared<device::StreamTimer>(driver);
  stream_ = stream;
}

void SegmentTimes::Begin(std::string_view kind, bool of_timeline) {
  begun_ = true;
  current_ = {.kind = kind,
              .of_timeline = of_timeline,
              .start_s = MonotonicSeconds(),
              .seconds = 0};
  if (timer_ != nullptr && fault_.ok()) Keep(timer_->Begin(stream_));
}

void SegmentTimes::End() {
  if (!std::exchange(begun_, false)) return;
  current_.seconds = MonotonicSeconds() - current_.start_s;
  if (timer_ != nullptr && fault_.ok()) Keep(timer_->End(stream_));
  if (fault_.ok()) ended_.push_back(current_);
}

std::vector<SegmentTime> SegmentTimes::Take() {
  std::vector<SegmentTime> known;
  for (; fault_.ok() && !ended_.empty(); ended_.pop_front()) {
    SegmentTime& oldest = ended_.front();
    if (timer_ != nullptr) {
      const auto span = timer_->Next();
      Keep(span.status());
      if (!span.ok() || !span->has_value()) break;
      oldest.start_s = (*span)->start_s;
      oldest.seconds = absl::ToDoubleSeconds((*span)->length);
    }
    known.push_back(oldest);
  }
  return known;
}

}  // namespace sluice::runtime
