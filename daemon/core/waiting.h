// The queue of leases that wait for memory: first come, first served. A lease
// waits for its pool, its user, its job or a plan; README.md says which later
// requests each kind of wait holds up, and which may pass (Rights). A held-up
// lease takes over the `lacks` of the earlier lease that holds it up. A lease
// that waits for a plan in vain is refused or joins the end of the queue.
//
// A lease gets a *turn*, one more attempt, when something that it may lack has
// changed (Woken). The queue only keeps the order; Leases asks the ledger.
// Thread safety: one thread (core.h).
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/named_counts.h"
#include "daemon/core/node/types.h"
#include "proto/base/table.h"

namespace sluice::daemon {

// A place in the queue: smaller is earlier.
struct PlaceInLine {
  uint64_t number = 0;
  auto operator<=>(const PlaceInLine&) const = default;
};

struct Waiter {
  enum class Lacks { kPool, kUser, kJob };
  Lacks lacks = Lacks::kPool;
  SessionId session;
  RequestId request;
  LeaseRequest asked;
  JobKey job;
  // If the lease waits for a plan, `deadline` is the end of that wait.
  absl::Time since, deadline;
  // When the lease gets a turn without an event, because its user may make more
  // extents by then; InfinitePast: it waits for events only.
  absl::Time again = absl::InfinitePast();
  bool for_plan = false;
  bool operator==(const Waiter&) const = default;
};
template <>
struct EnumNames<Waiter::Lacks> {
  static constexpr std::string_view kNames[] = {"pool", "user", "job"};
};

// Whether a request may pass leases that wait for its pool: with `reserved` the
// leases of other users, with `promised` the leases of other jobs.
struct Rights {
  bool reserved = false;  // fits its user's reservation
  bool promised = false;  // fits what its job's plan promises
  bool any() const { return reserved || promised; }
};

// What changed since the last Release.
struct Woken {
  std::set<PoolId> pools;
  std::set<Principal> users;  // charged or refunded
  bool all = false;
  bool any() const { return all || !pools.empty() || !users.empty(); }
  bool Wakes(const Waiter& waiter, absl::Time now) const {
    return all || pools.contains(waiter.asked.pool) ||
           users.contains(waiter.job.principal) ||
           (waiter.again != absl::InfinitePast() && waiter.again <= now);
  }
};

enum class WaitEnd { kGaveUp, kGranted, kRefused, kSessionEnded, kTimedOut };
template <>
struct EnumNames<WaitEnd> {
  static constexpr std::string_view kNames[] = {"gave_up", "granted", "refused",
                                                "session_ended", "timed_out"};
};

class WaitingQueue {
 public:
  struct Saved {
    std::map<PlaceInLine, Waiter> waiters;
    uint64_t next = 1;
    bool operator==(const Saved&) const = default;
  };

  // ResourceExhausted: the principal has, or all principals together have,
  // reached the limit of waiting leases. Leases that wait for plans do not
  // count, because each session has at most one.
  absl::Status MayJoin(const Principal& who, const WaitLimits& limits) const;
  void Join(Waiter waiter) {
    const PlaceInLine place{next_++};
    if (waiter.for_plan) for_plans_.insert(place);
    waiters_.Insert(place, std::move(waiter));
    wake_all_ = true;
  }
  // Removes and returns the lease; nullopt if it does not wait.
  std::optional<Waiter> Leave(SessionId session, RequestId request);
  // Removes the session's leases; returns how many of them waited for no plan.
  size_t SessionEnded(SessionId session);

  // The leases that a request may not pass: the first, and their number.
  struct InFront {
    const Waiter* first = nullptr;
    int count = 0;
  };
  // `place`: the place of `asks`, if it waits already.
  InFront Before(const Waiter& asks, Rights rights, absl::Time now,
                 const PlaceInLine* place = nullptr) const;

  // What a lease lacks, and Waiter::again, if it stays in the queue.
  struct Stay {
    Waiter::Lacks lacks = Waiter::Lacks::kPool;
    absl::Time again = absl::InfinitePast();
  };
  // The outcome of a lease's turn; nullopt: it is granted or refused.
  using Turn = std::optional<Stay>;
  // Gives a turn to the leases that `woken` wakes, in order, unless earlier
  // leases hold them up. Calls `rights` only for leases that an earlier lease
  // of their pool holds up, and `timed_out` for leases that miss a deadline.
  void Release(
      absl::Time now, const Woken& woken,
      absl::FunctionRef<Rights(const Waiter&)> rights,
      absl::FunctionRef<Turn(const Waiter&)> take_turn,
      absl::FunctionRef<void(const PlaceInLine&, const Waiter&)> timed_out);
  // Gives all leases a turn at the next Release.
  void WakeAll() { wake_all_ = true; }
  bool TakeWakeAll() { return std::exchange(wake_all_, false); }
  absl::Time NextDeadline() const;

  const std::set<PlaceInLine>& for_plans() const { return for_plans_; }
  // REQUIRES: the lease waits for a plan.
  void TryAgainAt(const PlaceInLine& place, absl::Time again) {
    waiters_.Edit(place).again = again;
  }

  const std::map<PlaceInLine, Waiter>& waiters() const {
    return waiters_.rows();
  }
  bool empty() const { return waiters_.empty(); }

  Table<PlaceInLine, Waiter>& rows() { return waiters_; }  // for saving
  uint64_t next() const { return next_; }
  Saved Save() const { return {waiters_.rows(), next_}; }
  void Load(Saved saved);

  void CheckInvariants(const WaitLimits& limits) const;

 private:
  // Returns whether `other`, an earlier lease, holds up the request `asks`.
  static bool HoldsUp(const Waiter& other, const Waiter& asks, Rights rights,
                      absl::Time now);

  void Erase(const PlaceInLine& place) {
    for_plans_.erase(place);
    waiters_.erase(place);
    wake_all_ = true;
  }

  Table<PlaceInLine, Waiter> waiters_;
  std::set<PlaceInLine> for_plans_;
  uint64_t next_ = 1;
  bool wake_all_ = true;
  absl::Time released_at_ = absl::InfinitePast();
};

}  // namespace sluice::daemon
