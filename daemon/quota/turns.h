// Whose request is served next: principals share the loop's time evenly
// (fair_queue.h), however many sessions each has and whatever its requests
// cost. The sessions of one principal take turns.
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
  // There is something to read of `session`. Nothing happens where it waits
  // for its turn already.
  void Add(const Principal& who, SessionId session);
  // The session is over.
  void Remove(SessionId session);
  // Whose turn it is; that one waits no longer. Nullopt: nobody waits.
  std::optional<SessionId> Next();
  // What the turn of the last Next took.
  void Spent(absl::Duration time);

  bool empty() const { return queue_.empty(); }
  size_t principals() const { return queue_.users(); }

 private:
  FairQueue<Principal, SessionId> queue_;
  std::unordered_set<uint64_t> waiting_;  // sessions
  Principal last_;
};

}  // namespace sluice::daemon
