#include "daemon/quota/turns.h"

#include <algorithm>
#include <deque>
#include <map>

namespace sluice::daemon {

void Turns::Add(const Principal& who, SessionId session) {
  if (!waiting_.try_emplace(session.value(), who).second) return;
  Queue& queue = queues_[who];
  if (queue.ready.empty()) queue.spent = std::max(queue.spent, least_);
  queue.ready.push_back(session);
}

void Turns::Remove(SessionId session) {
  const auto found = waiting_.find(session.value());
  if (found == waiting_.end()) return;
  std::erase(queues_.at(found->second).ready, session);
  waiting_.erase(found);
  Forget();
}

std::optional<SessionId> Turns::Next() {
  auto next = queues_.end();
  for (auto queue = queues_.begin(); queue != queues_.end(); ++queue) {
    if (queue->second.ready.empty()) continue;
    if (next == queues_.end() || queue->second.spent < next->second.spent) {
      next = queue;
    }
  }
  if (next == queues_.end()) return std::nullopt;
  least_ = std::max(least_, next->second.spent);
  last_ = next->first;
  const SessionId session = next->second.ready.front();
  next->second.ready.pop_front();
  waiting_.erase(session.value());
  return session;
}

void Turns::Spent(absl::Duration time) {
  if (const auto queue = queues_.find(last_); queue != queues_.end()) {
    queue->second.spent += std::max(time, absl::ZeroDuration());
  }
  Forget();
}

void Turns::Forget() {
  if (waiting_.empty()) {
    queues_.clear();
    least_ = absl::ZeroDuration();
    return;
  }
  std::erase_if(queues_, [&](const auto& entry) {
    return entry.second.ready.empty() && entry.second.spent <= least_;
  });
}

}  // namespace sluice::daemon
