// When a daemon that one user started ends: so long after its last rank.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <optional>

#include "absl/time/time.h"

namespace sluice::daemon {

class IdleEnd {
 public:
  // The first rank may take as long to come as the program that started the
  // daemon takes to load its libraries.
  static constexpr absl::Duration kFirst = absl::Minutes(1);

  IdleEnd(absl::Duration after, absl::Time start)
      : after_(after),
        unused_since_(start + std::max(absl::ZeroDuration(), kFirst - after)) {}

  // When it ends if from `now` on nothing changes: `used` or not.
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
