// Copies that were granted after compute needed them. They show an operator
// whether a job waits for its link.
//
// A rank states when compute needs the copy at the front of its queue
// (proto/base/grant_page.h). The copy is late if that time has passed and the
// daemon has not granted the copy's last byte. The daemon observes this itself,
// but the time is the rank's statement: a rank that states past times makes its
// own copies late, at most one per refill.
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
  double seconds = 0;  // total time that late copies waited at the front
  void Add(const LateCopies& more) {
    copies += more.copies;
    seconds += more.seconds;
  }
  bool operator==(const LateCopies&) const = default;
};

// kH2d and kD2h (proto/base/grant_page.h).
using LateDirections = std::array<LateCopies, 2>;

// Counts the late copies of one rank in one direction.
class LateCounter {
 public:
  // Records what a refill finds, `since_last` after the previous one. The copy
  // at the front ends at byte `up_to` (0: not stated) and is needed `in` from
  // now (negative: in the past); bytes are granted up to `granted`.
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
  uint64_t counted_ = 0;  // end of the copy that was counted last
};

}  // namespace sluice::daemon
