// Bandwidth policy: how far each rank's limit moves at a refill.
//
// Fair share per link and direction. In each refill a link gives out what it
// carried in the time since the last one. Every rank wants its limit to stand
// a window ahead of its use. First each gets what it was guaranteed, then the
// rest is shared evenly among those that still want (max-min: what one leaves
// goes to the others). A rank alone on its link has a wide window, because
// there is nobody to be fair to and the link itself is the limit.
//
// What a rank says it used is never trusted: it is clamped to what can be.
//
// Thread safety: none; one thread owns a GrantPolicy (the refill thread).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/types.h"

namespace sluice::daemon {

// Cumulative bytes, kH2d and kD2h (proto/base/grant_page.h).
using Directions = std::array<uint64_t, 2>;

class GrantPolicy {
 public:
  // With others on the link; and alone.
  static constexpr absl::Duration kWindow = absl::Milliseconds(20);
  static constexpr absl::Duration kWindowAlone = absl::Milliseconds(250);
  // A window is never smaller: a copy larger than its window waits for
  // several refills.
  static constexpr uint64_t kMinWindow = 1 << 20;

  explicit GrantPolicy(std::vector<LinkSpeed> links);

  // `link` is an index into the links; -1: on none that is known (ungated).
  // Returns the first limits.
  Directions Attach(int slot, int link, double guaranteed_bytes_per_second);
  void Detach(int slot);
  // What each attached slot has used, as far as believed at the last refill.
  std::map<int, Directions> used() const;
  bool idle() const { return ranks_.empty(); }

  // `used` of every attached slot, read just now. Returns the new limits,
  // never below the old ones.
  std::map<int, Directions> Refill(const std::map<int, Directions>& used,
                                   absl::Duration elapsed);

  void CheckInvariants() const;

 private:
  struct RankShare {
    int link = -1;
    double guaranteed = 0;
    Directions limit = {0, 0};
    Directions used = {0, 0};  // as far as believed
  };
  double Rate(int link, int direction) const;
  uint64_t Window(int link, int direction) const;
  void RefillLink(int link, int direction, absl::Duration elapsed);

  const std::vector<LinkSpeed> links_;
  std::map<int, RankShare> ranks_;
};

}  // namespace sluice::daemon
