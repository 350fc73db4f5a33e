// A simulated host link: copies over it take the time its speed says, shared
// by all streams of all processes that use it.
//
// How it works. A copy goes in slices. For each slice the copying thread
// books the link: the link's `next_free` moves on by the slice's time (one
// compare-exchange). Two streams that copy at once book in turn, so each gets
// half; no stream is notified. The thread then sleeps until the booked time is
// over and only then moves the bytes: like a real copy, data arrives late and
// the source is read late, so that a missing wait shows as wrong data.
//
// Booking is in virtual time: a slice starts at the end of the copy's last
// one, not when its thread woke up, so that late wake-ups do not slow a link
// (a DMA engine is not descheduled). Lateness beyond kMaxCatchUp is lost.
//
// A process that dies has booked at most one slice more than it copied.
//
// Every user of the node writes to the clocks. So one that is further ahead
// than kMostBookings slices counts as no further: a liar takes from others what
// so many streams that copy all the time would, and no more. One that is behind
// makes its link faster, which takes nothing from other users.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/node.h"

namespace sluice::device {

inline constexpr int64_t kMaxCatchUpNs = 50'000'000;

// MonotonicClock in nanoseconds: one for all processes of the machine.
int64_t MonotonicNs();

// How many slices may be booked ahead of a stream's: of as many streams.
inline constexpr int64_t kMostBookings = 64;

// Takes a link of this speed (0: not throttled) for `size` bytes, at `ready_ns`
// or when it is free; returns when they have passed.
int64_t BookLink(double bytes_per_second, std::atomic<int64_t>& next_free_ns,
                 Bytes size, int64_t ready_ns, int64_t now_ns);

// Do copies over the GPU's link take any time?
bool IsThrottled(const NodeMapping& node, DeviceIndex gpu,
                 CopyDirection direction);

// Copies at the link's speed. `ready_ns`: when the copy could start, on
// return when it ended, in virtual time. Unavailable: the GPU was lost.
absl::Status CopyOverLink(const NodeMapping& node, DeviceIndex gpu,
                          std::byte* to, const std::byte* from, Bytes size,
                          CopyDirection direction, int64_t& ready_ns);

}  // namespace sluice::device
