// Copies that were granted after compute needed them. They tell an operator
// whether a job waits for its link.
//
// A rank says of the copy in front by when compute needs it
// (proto/base/grant_page.h). It is late when that time is over and the daemon
// has not granted its last byte. That is the daemon's own observation, but for
// the time, which is the rank's word: a rank that names past times makes its
// own copies late, at most one a refill.
//
// Thread safety: values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace sluice::daemon {

struct LateCopies {
  uint64_t copies = 0;
  double seconds = 0;  // for how long one stood in front that was late
  void Add(const LateCopies& more) {
    copies += more.copies;
    seconds += more.seconds;
  }
  bool operator==(const LateCopies&) const = default;
};

// kH2d and kD2h (proto/base/grant_page.h).
using LateDirections = std::array<LateCopies, 2>;

// Counts those of one rank in one direction.
class LateCounter {
 public:
  // A refill, so long after the one before, finds that the copy in front ends
  // at byte `up_to`, is needed `in` from now (below 0: since then), and that
  // bytes are granted up to `granted`. 0: nothing is told.
  void See(uint64_t up_to, absl::Duration in, uint64_t granted,
           absl::Duration since_last) {
    if (up_to <= granted || in >= absl::ZeroDuration()) return;
    if (up_to != counted_) ++sum_.copies;
    counted_ = up_to;
    sum_.seconds += absl::ToDoubleSeconds(std::min(-in, since_last));
  }
  const LateCopies& sum() const { return sum_; }

 private:
  LateCopies sum_;
  uint64_t counted_ = 0;  // where the copy ends that was counted last
};

}  // namespace sluice::daemon
