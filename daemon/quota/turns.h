// Whose request is served next: principals share the loop's time evenly,
// however many sessions each has and whatever its requests cost.
//
// Start-time fair queueing. Each principal has a virtual time, the loop's time
// that its requests took; the one with the least is next, and its sessions take
// turns. Who comes back after a pause starts at the least that is ready, so
// nobody saves time up. So a request waits for at most one request of each
// other principal, and never for a second one of its own kind's flood.
//
// Thread safety: none needed; the loop's thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>

#include "absl/time/time.h"
#include "daemon/quota/principal.h"
#include "proto/base/ids.h"

namespace sluice::daemon {

class Turns {
 public:
  // There is something to read of `session`. Nothing happens where it waits
  // for its turn already.
  void Add(const Principal& who, SessionId session);
  // It is over.
  void Remove(SessionId session);
  // Whose turn it is; that one waits no longer. Nullopt: nobody waits.
  std::optional<SessionId> Next();
  // What the turn of the last Next took.
  void Spent(absl::Duration time);

  bool empty() const { return waiting_.empty(); }
  size_t principals() const { return queues_.size(); }

 private:
  struct Queue {
    absl::Duration spent;  // virtual
    std::deque<SessionId> ready;
  };
  // Drops whoever waits for nothing and is owed nothing.
  void Forget();

  std::map<Principal, Queue> queues_;
  std::unordered_map<uint64_t, Principal> waiting_;  // by session
  Principal last_;
  absl::Duration least_;  // virtual time of the last turn's begin
};

}  // namespace sluice::daemon
