// How many lines of the log a user may cause: kBurst at once, and kPerSecond
// from then on. What is more is counted, and told with the next line that is
// written for that user.
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

  // Who could not be identified; all of them together.
  static constexpr int64_t kUnknown = -1;

  // Nullopt: the line is not written. Else how many lines of `uid` were not
  // since the last that was.
  std::optional<uint64_t> Admit(int64_t uid, absl::Time now);
  size_t users() const { return users_.size(); }

 private:
  // Forgets those who may have a whole burst again.
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
