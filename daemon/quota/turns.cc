#include "daemon/quota/turns.h"

namespace sluice::daemon {

void Turns::Add(const Principal& who, SessionId session) {
  if (waiting_.insert(session.value()).second) queue_.Push(who, session);
}

void Turns::Remove(SessionId session) {
  if (waiting_.erase(session.value()) == 0) return;
  queue_.Remove([session](SessionId each) { return each == session; });
}

std::optional<SessionId> Turns::Next() {
  auto next = queue_.Pop();
  if (!next) return std::nullopt;
  last_ = std::move(next->first);
  waiting_.erase(next->second.value());
  return next->second;
}

void Turns::Spent(absl::Duration time) { queue_.Spent(last_, time); }

}  // namespace sluice::daemon
