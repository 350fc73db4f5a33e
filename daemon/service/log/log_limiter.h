// Limits how many lines of the log each user may cause: kBurst at once, then
// kPerSecond. Lines over the limit are counted, and the user's next written
// line reports their number.
//
// Thread safety: none needed; one thread (the loop's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/time/time.h"

namespace sluice::daemon {

class LogLimiter {
 public:
  static constexpr double kBurst = 200;
  static constexpr double kPerSecond = 20;

  // The user of all peers that could not be identified.
  static constexpr int64_t kUnknown = -1;

  // Returns whether a line of `uid` may be written. If so, it is the number of
  // lines omitted since the last written one; if not, nullopt.
  std::optional<uint64_t> Admit(int64_t uid, absl::Time now);
  size_t users() const { return users_.size(); }

 private:
  // Forgets users that may cause a whole burst again.
  void Tidy(absl::Time now);

  struct User {
    double left = kBurst;
    absl::Time at;
    uint64_t suppressed = 0;
  };
  std::map<int64_t, User> users_;
  absl::Time tidied_at_ = absl::InfinitePast();
};

}  // namespace sluice::daemon
