// Measures how long compute waited for tickets, by compute's own clock. On sim
// that is the host's clock, because the calling thread computes. On a GPU it is
// the clock of the compute stream; the host runs ahead of the stream, so a wait
// counts once the stream has passed it. Internal to the copy engine.
//
// Thread safety: Begin, End and UseStream by the compute thread; total by any.
#pragma once

#include <atomic>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/device/stream_timer.h"

namespace sluice::client {

class StallClock {
 public:
  // `compute` is the driver's own compute stream; `driver` outlives the clock.
  StallClock(device::Driver* driver, device::Stream compute)
      : driver_(driver), compute_(compute), timer_(driver) {}

  // Measures waits on this adopted stream from now on.
  void UseStream(device::Stream stream);
  // Call Begin before a wait and End after it, whether the wait is enqueued or
  // blocks.
  absl::Status Begin();
  absl::Status End();
  // Returns the sum of all waits that have ended. Does not wait for the device.
  absl::Duration total();

 private:
  bool OnStream();
  void TakeEnded();

  device::Driver* const driver_;
  device::Stream compute_;
  std::optional<bool> on_stream_;  // nullopt until OnStream is called
  double began_s_ = 0;
  device::StreamTimer timer_;
  std::atomic<int64_t> total_ns_{0};
};

}  // namespace sluice::client
