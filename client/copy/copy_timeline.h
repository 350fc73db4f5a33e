// Records when copies really started and ended. Internal to the copy engine.
//
// The copy streams' clocks measure the times (kernels/device/stream_timer.h).
// Not the host's clock: to a host that polls, a short copy seems to take no
// time, or as long as a nap. No method except Align waits.
//
// Errors: the driver's. After an error in reading times, no more are reported.
// Thread safety: Begin and End of a direction are called by the thread that
// issues its copies; other methods by any thread.
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
  // `streams[0]` copies to the GPU, `streams[1]` to the host.
  CopyTimeline(device::Driver* driver, std::array<device::Stream, 2> streams);

  // Waits for both streams and aligns the host's clock with theirs, which
  // drift. Call it at the start, and wherever the host has waited for them
  // anyway.
  absl::Status Align();
  // Call them around enqueuing a request's copies. Begin drops a span that has
  // begun and not ended.
  absl::Status Begin(device::CopyDirection direction);
  // `record` states the label, direction, size and issue time.
  absl::Status End(const CopyRecord& record);
  // Returns the copies that ended since the last call; those of one direction
  // are in order.
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
