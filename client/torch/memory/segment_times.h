// When segments ran, by the clock of whatever computes them: on sim that is the
// calling thread; on a GPU it is a stream, which the host runs ahead of, so
// times come later than the segment's end (kernels/device/stream_timer.h).
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
  bool of_timeline;         // began while a timeline was wanted
  double start_s, seconds;  // the former monotonic
};

class SegmentTimes {
 public:
  // Segments run on `stream` from now on. `driver` outlives what is returned by
  // timer().
  void UseStream(device::Driver* driver, device::Stream stream);
  // Null: the calling thread computes. Align and Await wait: call them without
  // a lock.
  std::shared_ptr<device::StreamTimer> timer() const { return timer_; }
  device::Stream stream() const { return stream_; }
  // No times are told any more.
  void Close() { timer_.reset(); }

  // `kind` lives until its time was taken.
  void Begin(std::string_view kind, bool of_timeline);
  void End();
  // Those known since the last call, in order.
  std::vector<SegmentTime> Take();

  // The first failure of the stream's clock: later segments have no time.
  const absl::Status& fault() const { return fault_; }
  void Keep(const absl::Status& status) { fault_.Update(status); }

 private:
  std::shared_ptr<device::StreamTimer> timer_;
  device::Stream stream_;
  bool begun_ = false;
  SegmentTime current_ = {};
  std::deque<SegmentTime> ended_;  // on a stream: their times are to come
  absl::Status fault_;
};

}  // namespace sluice::runtime
