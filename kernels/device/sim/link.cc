#include "kernels/device/sim/link.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>

#include "proto/base/status.h"

namespace sluice::device {
namespace {

// Long enough that waking up costs little, short enough that streams that
// share a link interleave.
constexpr double kSliceSeconds = 0.5e-3;
constexpr double kMinSlice = 64 << 10;
constexpr double kMaxSlice = 4 << 20;

Bytes SliceSize(double bytes_per_second) {
  if (bytes_per_second == 0) return Bytes(static_cast<int64_t>(kMaxSlice));
  const double size = bytes_per_second * kSliceSeconds;
  return Bytes(static_cast<int64_t>(std::clamp(size, kMinSlice, kMaxSlice)));
}

void SleepUntil(int64_t when_ns) {
  const timespec when = {.tv_sec = when_ns / 1'000'000'000,
                         .tv_nsec = when_ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, nullptr) ==
         EINTR) {
  }
}

}  // namespace

int64_t MonotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

int64_t BookLink(SharedLink& link, CopyDirection direction, Bytes size,
                 int64_t ready_ns) {
  const int d = static_cast<int>(direction);
  const double speed = link.bytes_per_second[d];
  if (speed == 0) return ready_ns;
  const int64_t duration =
      std::llround(static_cast<double>(size.count()) / speed * 1e9);
  int64_t next_free = link.next_free_ns[d].load();
  int64_t end;
  do {
    end = std::max(next_free, ready_ns) + duration;
  } while (!link.next_free_ns[d].compare_exchange_weak(next_free, end));
  return end;
}

absl::Status CopyOverLink(const NodeMapping& node, DeviceIndex gpu,
                          std::byte* to, const std::byte* from, Bytes size,
                          CopyDirection direction, int64_t& ready_ns) {
  SharedState& state = node.state();
  SharedLink& link = state.links[state.gpus[gpu.value()].link % kSimMaxLinks];
  const int d = static_cast<int>(direction);
  for (Bytes done; done < size;) {
    SLUICE_RETURN_IF_ERROR(node.CheckPlacement(Placement::Gpu(gpu)));
    const Bytes slice =
        std::min(SliceSize(link.bytes_per_second[d]), size - done);
    ready_ns = std::max(ready_ns, MonotonicNs() - kMaxCatchUpNs);
    ready_ns = BookLink(link, direction, slice, ready_ns);
    SleepUntil(ready_ns);
    std::memcpy(to + done.size(), from + done.size(), slice.size());
    done += slice;
  }
  return absl::OkStatus();
}

}  // namespace sluice::device
