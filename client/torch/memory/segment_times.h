// Measures when segments ran, by the clock of what computes them. On sim that
// is the calling thread. On a GPU it is a stream, which the host runs ahead of,
// so times are known only after the segment's end
// (kernels/device/stream_timer.h).
//
// Thread safety: none; the allocator locks.
#pragma once

#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device/stream_timer.h"

namespace sluice::runtime {

struct SegmentTime {
  std::string_view kind;
  bool of_timeline;         // began while a timeline was recorded
  double start_s, seconds;  // start: monotonic
};

class SegmentTimes {
 public:
  // Times segments on `stream` from now on. `driver` outlives the result of
  // timer().
  void UseStream(device::Driver* driver, device::Stream stream);
  // Returns the stream's timer; null if the calling thread computes. Its Align
  // and Await wait for the stream: call them without a lock.
  std::shared_ptr<device::StreamTimer> timer() const { return timer_; }
  device::Stream stream() const { return stream_; }
  // From now on no times are reported.
  void Close() { timer_.reset(); }

  // Begins a segment. `kind` must live until Take has returned its time.
  void Begin(std::string_view kind, bool of_timeline);
  void End();
  // Returns the times that became known since the last call, in order.
  std::vector<SegmentTime> Take();

  // The first failure of the stream's clock; segments after it have no time.
  const absl::Status& fault() const { return fault_; }
  void Keep(const absl::Status& status) { fault_.Update(status); }

 private:
  std::shared_ptr<device::StreamTimer> timer_;
  device::Stream stream_;
  bool begun_ = false;
  SegmentTime current_ = {};
  std::deque<SegmentTime> ended_;  // on a stream: times not known yet
  absl::Status fault_;
};

}  // namespace sluice::runtime
