// Decides which request is served next. Principals share the loop's time evenly
// (fair_queue.h), however many sessions each has and however long its requests
// take. The sessions of one principal take turns.
//
// Thread safety: none needed; the loop's thread only.
#pragma once

#include <optional>
#include <unordered_set>

#include "absl/time/time.h"
#include "daemon/quota/fair_queue.h"
#include "daemon/quota/principal.h"
#include "proto/base/ids.h"

namespace sluice::daemon {

class Turns {
 public:
  // Queues `session`, which has something to read, unless it is queued already.
  void Add(const Principal& who, SessionId session);
  // Removes an ended session.
  void Remove(SessionId session);
  // Returns the next session and removes it from the queue; nullopt if none
  // waits.
  std::optional<SessionId> Next();
  // Charges `time` to the principal of the session that Next returned last.
  void Spent(absl::Duration time);

  bool empty() const { return queue_.empty(); }
  size_t principals() const { return queue_.users(); }

 private:
  FairQueue<Principal, SessionId> queue_;
  std::unordered_set<uint64_t> waiting_;  // sessions
  Principal last_;
};

}  // namespace sluice::daemon
