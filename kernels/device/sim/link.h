// A simulated host link: a copy takes the time that the link's speed requires,
// and all streams of all processes share that speed.
//
// A copy is cut into slices. For each slice the copying thread books the link:
// it advances the link's `next_free` by the slice's time, with one
// compare-exchange. Two streams that copy at the same time book alternately, so
// each gets half of the speed. The thread sleeps until the booked time is over
// and only then moves the bytes. As with a real copy, data arrives late and the
// source is read late, so that a missing wait shows as wrong data.
//
// Booking uses virtual time: a slice starts at the end of the copy's previous
// slice and not when its thread woke up, so that late wake-ups do not slow a
// link (a DMA engine is not descheduled). A copy catches up at most
// kMaxCatchUpNs. A stream that dies has booked at most one slice that it did
// not copy.
//
// Every user of the node can write to the clocks. So a clock that is more than
// kMostBookings slices ahead counts as kMostBookings slices ahead. A clock that
// a user sets back makes its link too fast.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/node.h"

namespace sluice::device {

inline constexpr int64_t kMaxCatchUpNs = 50'000'000;

// Returns MonotonicClock's time, the same in all processes of the machine.
int64_t MonotonicNs();

// Limit of the slices of other streams that a booking waits for.
inline constexpr int64_t kMostBookings = 64;

// Books the link for `size` bytes, from `ready_ns` on or once the link is free.
// Returns the booking's end, or `ready_ns` at speed 0, which means no limit.
int64_t BookLink(double bytes_per_second, std::atomic<int64_t>& next_free_ns,
                 Bytes size, int64_t ready_ns, int64_t now_ns);

// Returns whether the GPU's link has a limited speed in this direction.
bool IsThrottled(const NodeMapping& node, DeviceIndex gpu,
                 CopyDirection direction);

// `ready_ns` is the virtual time at which the copy could start, and on return
// the virtual time at which the copy ended. Unavailable: the GPU was lost.
absl::Status CopyOverLink(const NodeMapping& node, DeviceIndex gpu,
                          std::byte* to, const std::byte* from, Bytes size,
                          CopyDirection direction, int64_t& ready_ns);

}  // namespace sluice::device
