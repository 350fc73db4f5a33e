#include "daemon/core/session.h"

#include <algorithm>

#include "proto/base/status.h"

namespace sluice::daemon {

RequestHistory::Seen RequestHistory::Begin(RequestId id) {
  if (const auto known = requests_.find(id); known != requests_.end()) {
    return known->second.has_value() ? Seen::kAnswered : Seen::kRunning;
  }
  if (id <= newest_forgotten_) return Seen::kForgotten;
  // Only answered requests are forgotten; running ones are few: a lease is
  // bounded by its pool, those that wait by their quota, and a profile by the
  // packet rate.
  for (auto each = requests_.begin();
       requests_.size() >= kWindow && each != requests_.end();) {
    const RequestId oldest = each->first;
    const bool answered = each->second.has_value();
    ++each;
    if (!answered) continue;
    newest_forgotten_ = std::max(newest_forgotten_, oldest);
    requests_.erase(oldest);
  }
  requests_.Insert(id);
  return Seen::kNew;
}

void RequestHistory::Answer(RequestId id, const Reply& reply) {
  std::optional<Reply>& answer = requests_.Edit(id);
  SLUICE_CHECK(!answer.has_value());
  answer = reply;
}

void RequestHistory::LeaseEnded(RequestId id) {
  std::optional<Reply>* known = requests_.Find(id);
  if (known == nullptr || !known->has_value()) return;
  if (auto* granted = std::get_if<GrantedReply>(&**known)) {
    granted->slices = {};
  }
}

void RequestHistory::ForgetRunning(const std::set<RequestId>& but_for) {
  for (auto each = requests_.begin(); each != requests_.end();) {
    const auto& [id, reply] = *each++;
    if (!reply.has_value() && !but_for.contains(id)) requests_.erase(id);
  }
}

const Reply& RequestHistory::answer(RequestId id) const {
  return *requests_.at(id);
}

}  // namespace sluice::daemon
