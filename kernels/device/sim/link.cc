#include "kernels/device/sim/link.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/time/clock.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::device {
namespace {

// The time of a slice: long enough that waking up costs little, and short
// enough that streams that share a link interleave.
constexpr double kSliceSeconds = 0.5e-3;
constexpr double kMinSlice = 64 << 10;
constexpr double kMaxSlice = 4 << 20;

Bytes SliceSize(double bytes_per_second) {
  if (bytes_per_second == 0) return Bytes(static_cast<int64_t>(kMaxSlice));
  const double size = bytes_per_second * kSliceSeconds;
  return Bytes(static_cast<int64_t>(std::clamp(size, kMinSlice, kMaxSlice)));
}

int64_t DurationNs(Bytes size, double bytes_per_second) {
  return std::llround(static_cast<double>(size.count()) / bytes_per_second *
                      1e9);
}

}  // namespace

int64_t MonotonicNs() { return absl::ToUnixNanos(MonotonicClock().Now()); }

int64_t BookLink(double bytes_per_second, std::atomic<int64_t>& next_free_ns,
                 Bytes size, int64_t ready_ns, int64_t now_ns) {
  if (bytes_per_second == 0) return ready_ns;
  const int64_t duration = DurationNs(size, bytes_per_second);
  const int64_t latest =
      std::max(now_ns, ready_ns) +
      kMostBookings * DurationNs(SliceSize(bytes_per_second), bytes_per_second);
  int64_t next_free = next_free_ns.load();
  int64_t end;
  do {
    end = std::max(std::min(next_free, latest), ready_ns) + duration;
  } while (!next_free_ns.compare_exchange_weak(next_free, end));
  return end;
}

bool IsThrottled(const NodeMapping& node, DeviceIndex gpu,
                 CopyDirection direction) {
  const SharedState& state = node.state();
  const uint32_t link = state.gpus[gpu.value()].link % kSimMaxLinks;
  return state.links[link].bytes_per_second[static_cast<int>(direction)] != 0;
}

absl::Status CopyOverLink(const NodeMapping& node, DeviceIndex gpu,
                          std::byte* to, const std::byte* from, Bytes size,
                          CopyDirection direction, int64_t& ready_ns) {
  const SharedState& state = node.state();
  const uint32_t link = state.gpus[gpu.value()].link % kSimMaxLinks;
  const int d = static_cast<int>(direction);
  const auto& speed = state.links[link].bytes_per_second[d];
  for (Bytes done; done < size;) {
    SLUICE_RETURN_IF_ERROR(node.CheckPlacement(Placement::Gpu(gpu)));
    const Bytes slice = std::min(SliceSize(speed), size - done);
    const int64_t now = MonotonicNs();
    ready_ns = std::max(ready_ns, now - kMaxCatchUpNs);
    ready_ns = BookLink(speed, node.clocks().links[link].next_free_ns[d], slice,
                        ready_ns, now);
    absl::SleepFor(absl::Nanoseconds(ready_ns - now));
    std::memcpy(to + done.size(), from + done.size(), slice.size());
    done += slice;
  }
  return absl::OkStatus();
}

}  // namespace sluice::device
