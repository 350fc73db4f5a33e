// Decides when a daemon that was started for one user ends: some time after its
// last rank.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <optional>

#include "absl/time/time.h"

namespace sluice::daemon {

class IdleEnd {
 public:
  // The wait for the first rank: the program that started the daemon may need
  // this long to load its libraries.
  static constexpr absl::Duration kFirst = absl::Minutes(1);

  IdleEnd(absl::Duration after, absl::Time start)
      : after_(after),
        unused_since_(start + std::max(absl::ZeroDuration(), kFirst - after)) {}

  // Returns when the daemon ends if it stays `used`, or unused, from `now` on.
  absl::Time At(bool used, absl::Time now) {
    if (used) {
      unused_since_.reset();
      return absl::InfiniteFuture();
    }
    if (!unused_since_) unused_since_ = now;
    return *unused_since_ + after_;
  }

 private:
  const absl::Duration after_;
  std::optional<absl::Time> unused_since_;
};

}  // namespace sluice::daemon
