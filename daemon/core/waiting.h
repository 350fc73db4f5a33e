// Leases that wait for memory, in their order.
//
// A request may say how long it waits instead of being refused at once. Leases
// that wait stand in line: first come, first served. States:
//   for its pool  what it asks for is not free there. In the first half of its
//                 wait later requests that are smaller pass it; in the second
//                 no later request takes memory of that pool. So neither
//                 starves: half a wait is the most that one is passed, and the
//                 most that it closes its pool.
//   for its user  its user's budget or extents do not allow it. Only later
//   for its job   requests of that user (of that job) for memory of the same
//                 kind stay behind it: no other user can help or harm it.
//   for a plan    running jobs of its user may give back the host memory that
//                 it asks for, once they run by other plans. It holds up no
//                 other lease, and none holds it up: what it waits for is
//                 promised to it (JointPlanning). When nothing comes any more
//                 it is refused, or joins the line at its end.
//   (ended)       granted, timed out, given up, refused since it can never be,
//                 or its session ended
// A lease that stays behind another one is in the same state as that one.
//
// Two rights let a request pass those that wait for the pool, because these
// could not have that memory anyway: what its user has reserved (but not past
// others of that user), and what a plan has promised its job (but not past
// others of that job).
//
// A lease has its turn when something changed that it may lack: its pool, its
// user's charges, or the line in front of it (Woken). The queue only keeps the
// line; Core asks the ledger whether there is memory.
//
// Thread safety: none needed; one thread (see core.h).
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
#include "daemon/core/named_counts.h"
#include "daemon/core/node/types.h"
#include "daemon/core/requests.h"
#include "proto/base/table.h"

namespace sluice::daemon {

// A place in the line: smaller is earlier.
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
  absl::Time since, deadline;  // the deadline of this state, if for a plan
  // It is tried again then, since no event says when it gets what it lacks.
  absl::Time again = absl::InfinitePast();
  bool for_plan = false;
  bool operator==(const Waiter&) const = default;
};
template <>
struct EnumNames<Waiter::Lacks> {
  static constexpr std::string_view kNames[] = {"pool", "user", "job"};
};

// What lets a request pass others.
struct Rights {
  bool reserved = false;  // its user's reservation has room for it
  bool promised = false;  // its job's plan does
  bool any() const { return reserved || promised; }
};

// What has changed since waiting leases had their turn.
struct Woken {
  std::set<PoolId> pools;
  std::set<Principal> users;  // that were charged or refunded
  bool all = false;
  bool any() const { return all || !pools.empty() || !users.empty(); }
  bool Wakes(const Waiter& waiter, absl::Time now) const;
};

// How the wait of a lease ended.
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

  // ResourceExhausted: its user, or all together, have as many as they may.
  // Leases that wait for plans are not counted, here and in the snapshot: there
  // is at most one of a session.
  absl::Status MayJoin(const Principal& who, const WaitLimits& limits) const;
  // At the end of the line.
  void Join(Waiter waiter);
  // Removes and returns it; nullopt if it does not wait.
  std::optional<Waiter> Leave(SessionId session, RequestId request);
  // Removes all of the session; returns how many stood in line.
  size_t SessionEnded(SessionId session);

  // The leases that a new request may not pass: the first, and how many.
  struct InFront {
    const Waiter* first = nullptr;
    int count = 0;
  };
  InFront Before(const Waiter& asks, Rights rights, absl::Time now) const {
    return Before(waiters_.end(), asks, rights, now);
  }
  // The same for one that waits.
  InFront Before(const PlaceInLine& place, Rights rights, absl::Time now) const;

  // What became of a lease that had its turn.
  struct Turn {
    enum class Result { kGranted, kStays, kRefused };
    Result result = Result::kStays;
    Waiter::Lacks lacks = Waiter::Lacks::kPool;  // if it stays
    absl::Time again = absl::InfinitePast();     // if it stays
  };
  // Gives those that `woken` wakes their turn, in the order of the line, unless
  // others hold them up, and removes those that are granted or refused.
  // `rights` is asked only for leases that others hold up at their pool. A
  // lease without memory at its deadline is removed after `timed_out`.
  void Release(
      absl::Time now, const Woken& woken,
      absl::FunctionRef<Rights(const Waiter&)> rights,
      absl::FunctionRef<Turn(const Waiter&)> take_turn,
      absl::FunctionRef<void(const PlaceInLine&, const Waiter&)> timed_out);
  // Woken::all next time: the line or the policy has changed.
  void WakeAll() { wake_all_ = true; }
  bool TakeWakeAll() { return std::exchange(wake_all_, false); }
  // When a deadline passes, or one is to be tried that no event wakes.
  absl::Time NextDeadline() const;

  // Those that wait for plans, in their order.
  const std::set<PlaceInLine>& for_plans() const { return for_plans_; }
  // REQUIRES: it waits for a plan.
  void TryAgainAt(const PlaceInLine& place, absl::Time again);

  const std::map<PlaceInLine, Waiter>& waiters() const {
    return waiters_.rows();
  }
  // How many of one user stand in line.
  size_t WaitingOf(const Principal& who) const;
  bool empty() const { return waiters_.empty(); }

  // The same row by row (state.h).
  Table<PlaceInLine, Waiter>& rows() { return waiters_; }
  uint64_t next() const { return next_; }
  Saved Save() const { return {waiters_.rows(), next_}; }
  void Load(Saved saved);

  void CheckInvariants(const WaitLimits& limits) const;

 private:
  // Whether `other`, which is before it, holds up such a request.
  static bool HoldsUp(const Waiter& other, const Waiter& asks, Rights rights,
                      absl::Time now);
  InFront Before(Table<PlaceInLine, Waiter>::const_iterator end,
                 const Waiter& asks, Rights rights, absl::Time now) const;

  void Erase(const PlaceInLine& place);

  Table<PlaceInLine, Waiter> waiters_;
  std::set<PlaceInLine> for_plans_;
  uint64_t next_ = 1;
  bool wake_all_ = true;
  absl::Time released_at_ = absl::InfinitePast();
};

}  // namespace sluice::daemon
