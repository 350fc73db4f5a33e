// When copies really started and ended, for reports and for plans by the speed
// of links. Internal to the copy engine.
//
// Times are those of the copying streams (kernels/device/stream_timer.h). Not
// the host's: a host that polls sees a short copy take no time, or a nap's. No
// call waits: ended copies are taken in when the next copy is added, and by the
// readers.
//
// Errors: the driver's. After an error while times were read, no more times are
// reported; copies find a lost device by themselves.
// Thread safety: Begin and End of a direction from the thread that issues for
// it; the others from any thread.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/copy/copy_engine.h"
#include "kernels/device/stream_timer.h"
#include "proto/base/mutex.h"

namespace sluice::client {

class CopyTimeline {
 public:
  // `streams` copy to the GPU, and to the host.
  CopyTimeline(device::Driver* driver, std::array<device::Stream, 2> streams);

  // Aligns the host's clock with those of the streams, for which it waits. Call
  // it at the start, and where the host has waited for them anyway: a stream's
  // clock drifts.
  absl::Status Align();
  // Begin and End stand around the copies of a request. A request that has
  // begun and does not end is given up.
  absl::Status Begin(device::CopyDirection direction);
  // `record` with its label, direction, size and issue time.
  absl::Status End(const CopyRecord& record);
  // What has ended since the last call, each direction in its order.
  std::vector<CopyRecord> Take();

 private:
  struct Lane {
    Lane(device::Driver* driver, device::Stream stream)
        : stream(stream), timer(driver) {}
    const device::Stream stream;
    device::StreamTimer timer;
    std::deque<CopyRecord> pending;  // guarded by mutex_
  };

  Lane& LaneOf(device::CopyDirection direction) {
    return *lanes_[direction == device::CopyDirection::kHostToDevice ? 0 : 1];
  }
  void TakeEnded(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::array<std::unique_ptr<Lane>, 2> lanes_;
  Mutex mutex_;
  std::vector<CopyRecord> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::client
