// Decides which request is served next. Principals share the loop's time evenly
// (fair_queue.h), however many sessions each has and however long its requests
// take. The sessions of one principal take turns.
// Thread safety: the loop's thread only.
#pragma once

#include <optional>
#include <unordered_set>
#include <utility>

#include "absl/time/time.h"
#include "daemon/quota/fair_queue.h"
#include "daemon/quota/principal.h"
#include "proto/base/ids.h"

namespace sluice::daemon {

class Turns {
 public:
  // Queues `session`, which has something to read, unless it is queued already.
  void Add(const Principal& who, SessionId session) {
    if (waiting_.insert(session.value()).second) queue_.Push(who, session);
  }
  void Remove(SessionId session) {
    if (waiting_.erase(session.value()) == 0) return;
    queue_.Remove([session](SessionId each) { return each == session; });
  }
  // Removes and returns the next session; nullopt if none waits.
  std::optional<SessionId> Next() {
    auto next = queue_.Pop();
    if (!next) return std::nullopt;
    last_ = std::move(next->first);
    waiting_.erase(next->second.value());
    return next->second;
  }
  // Charges `time` to the principal of the session that Next returned last.
  void Spent(absl::Duration time) { queue_.Spent(last_, time); }

  bool empty() const { return queue_.empty(); }
  size_t principals() const { return queue_.users(); }

 private:
  FairQueue<Principal, SessionId> queue_;
  std::unordered_set<uint64_t> waiting_;  // sessions
  Principal last_;
};

}  // namespace sluice::daemon
