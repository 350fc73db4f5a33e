#include "daemon/service/log/log_limiter.h"

#include <algorithm>
#include <utility>

namespace sluice::daemon {
namespace {

constexpr absl::Duration kTidyEvery = absl::Seconds(60);

}  // namespace

std::optional<uint64_t> LogLimiter::Admit(int64_t uid, absl::Time now) {
  Tidy(now);
  const auto [found, is_new] = users_.try_emplace(uid);
  User& user = found->second;
  if (is_new) user.at = now;
  user.left = std::min(
      kBurst, user.left + kPerSecond * absl::ToDoubleSeconds(now - user.at));
  user.at = now;
  if (user.left < 1) {
    ++user.suppressed;
    return std::nullopt;
  }
  user.left -= 1;
  return std::exchange(user.suppressed, 0);
}

void LogLimiter::Tidy(absl::Time now) {
  if (now < tidied_at_ + kTidyEvery) return;
  tidied_at_ = now;
  std::erase_if(users_, [&](const auto& entry) {
    const User& user = entry.second;
    const double since = absl::ToDoubleSeconds(now - user.at);
    return user.suppressed == 0 && user.left + kPerSecond * since >= kBurst;
  });
}

}  // namespace sluice::daemon
