#include "client/copy/copy_timeline.h"

#include <utility>

#include "proto/base/status.h"

namespace sluice::client {

CopyTimeline::CopyTimeline(device::Driver* driver,
                           std::array<device::Stream, 2> streams)
    : lanes_{std::make_unique<Lane>(driver, streams[0]),
             std::make_unique<Lane>(driver, streams[1])} {}

absl::Status CopyTimeline::Align() {
  for (const auto& lane : lanes_) {
    {
      // Collects the ended copies first, so that the old alignment dates them.
      const MutexLock lock(mutex_);
      TakeEnded(*lane);
    }
    SLUICE_RETURN_IF_ERROR(lane->timer.Align(lane->stream));
  }
  return absl::OkStatus();
}

absl::Status CopyTimeline::Begin(device::CopyDirection direction) {
  Lane& lane = LaneOf(direction);
  return lane.timer.Begin(lane.stream);
}

absl::Status CopyTimeline::End(const CopyRecord& record) {
  Lane& lane = LaneOf(record.direction);
  const MutexLock lock(mutex_);
  SLUICE_RETURN_IF_ERROR(lane.timer.End(lane.stream));
  lane.pending.push_back(record);
  TakeEnded(lane);
  return absl::OkStatus();
}

std::vector<CopyRecord> CopyTimeline::Take() {
  const MutexLock lock(mutex_);
  for (const auto& lane : lanes_) TakeEnded(*lane);
  return std::exchange(ended_, {});
}

void CopyTimeline::TakeEnded(Lane& lane) {
  while (!lane.pending.empty()) {
    const auto span = lane.timer.Next();
    if (!span.ok() || !span->has_value()) return;
    CopyRecord& record = lane.pending.front();
    record.started_s = (*span)->start_s;
    record.finished_s =
        record.started_s + absl::ToDoubleSeconds((*span)->length);
    ended_.push_back(record);
    lane.pending.pop_front();
  }
}

}  // namespace sluice::client
