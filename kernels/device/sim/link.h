// A simulated host link: a copy takes the time that the link's speed dictates,
// and all streams of all processes share that speed.
//
// How it works. A copy goes in slices. For each slice the copying thread books
// the link: the link's `next_free` moves on by the slice's time, by one
// compare-exchange. Two streams that copy at once book in turn, so each gets
// half, and no stream needs to notify another. The thread then sleeps until the
// booked time is over and only then moves the bytes. As with a real copy, data
// arrives late and the source is read late, so that a missing wait shows as
// wrong data.
//
// Booking is in virtual time: a slice starts at the end of the copy's last
// slice and not when its thread woke up, so that late wake-ups do not slow a
// link (a DMA engine is not descheduled). Lateness beyond kMaxCatchUp is lost.
//
// A process that dies has booked at most one slice more than it copied.
//
// Every user of the node writes to the clocks. So a clock that is further ahead
// than kMostBookings slices counts as that far ahead: a process that lies takes
// at most as much as that many streams that copy all the time. A clock that is
// behind makes its link faster, which takes nothing from other users.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/node.h"

namespace sluice::device {

inline constexpr int64_t kMaxCatchUpNs = 50'000'000;

// MonotonicClock in nanoseconds, the same in all processes of the machine.
int64_t MonotonicNs();

// The most slices, of other streams, that may be booked ahead of a stream's
// own.
inline constexpr int64_t kMostBookings = 64;

// Books a link of this speed (0: not throttled) for `size` bytes, from
// `ready_ns` or from when it is free. Returns when they will have passed.
int64_t BookLink(double bytes_per_second, std::atomic<int64_t>& next_free_ns,
                 Bytes size, int64_t ready_ns, int64_t now_ns);

// Returns whether copies over the GPU's link take time.
bool IsThrottled(const NodeMapping& node, DeviceIndex gpu,
                 CopyDirection direction);

// Copies at the link's speed. `ready_ns` is when the copy could start and, on
// return, when it ended, in virtual time. Unavailable: the GPU was lost.
absl::Status CopyOverLink(const NodeMapping& node, DeviceIndex gpu,
                          std::byte* to, const std::byte* from, Bytes size,
                          CopyDirection direction, int64_t& ready_ns);

}  // namespace sluice::device
