// Leases that wait for memory, in their order.
//
// A request may say how long it waits instead of being refused at once. Who
// waits stands in line: first come, first served. States:
//   for its pool  what it asks for is not free there. In the first half of its
//                 wait later requests that are smaller pass it; in the second
//                 no later request takes memory of that pool. So neither
//                 starves: half a wait is the most that one is passed, and the
//                 most that it closes its pool.
//   for its user  its user's budget or extents do not allow it; only later
//   for its job   requests of that user (of that job) for memory of the same
//                 kind stay behind it: nobody else can help or harm it
//   (ended)       granted, timed out, given up, refused since it can never be,
//                 or its session ended
// Whoever stays behind such a one is in the same state.
//
// Two rights let a request pass those that wait for the pool, since these are
// to have none of that memory: what its user has reserved (but not past others
// of that user), and what a plan has promised its job (but not past others of
// that job).
//
// It only keeps the line; whether there is memory, Core asks the ledger.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/named_counts.h"
#include "daemon/core/requests.h"
#include "daemon/core/types.h"
#include "proto/base/table.h"

namespace sluice::daemon {

// Its place in the line: smaller is earlier.
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
  absl::Time since, deadline;
  // Not tried before: what it lacks comes with time, and no event says when.
  absl::Time again = absl::InfinitePast();
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
  absl::Status MayJoin(const Principal& who, const WaitLimits& limits) const;
  // At the end of the line.
  void Join(Waiter waiter);
  // Takes it out; nullopt: it does not wait.
  std::optional<Waiter> Leave(SessionId session, RequestId request);
  // All of them; returns how many there were.
  size_t SessionEnded(SessionId session);

  // Whom a new request may not pass: the first of them, and how many there
  // are. Null: nobody.
  struct InFront {
    const Waiter* first = nullptr;
    int count = 0;
  };
  InFront Before(const JobKey& job, const LeaseRequest& asked, Rights rights,
                 absl::Time now) const;
  // The same for one that waits.
  InFront Before(const PlaceInLine& place, Rights rights, absl::Time now) const;

  // What became of one whose turn it was.
  struct Turn {
    enum class Result { kGranted, kStays, kRefused };
    Result result = Result::kStays;
    Waiter::Lacks lacks = Waiter::Lacks::kPool;  // if it stays
    absl::Time again = absl::InfinitePast();     // if it stays
  };
  // Gives each its turn that nobody holds up, in the order of the line, and
  // takes out who is granted or refused. `rights` is asked of those only that
  // others hold up at their pool. Who has no memory when its time is over is
  // taken out too, after `timed_out`.
  void Release(
      absl::Time now, absl::FunctionRef<Rights(const Waiter&)> rights,
      absl::FunctionRef<Turn(const Waiter&)> take_turn,
      absl::FunctionRef<void(const PlaceInLine&, const Waiter&)> timed_out);
  // When a deadline passes, or one is to be tried that no event wakes.
  absl::Time NextDeadline() const;

  const std::map<PlaceInLine, Waiter>& waiters() const {
    return waiters_.rows();
  }
  // How many of one user.
  size_t WaitingOf(const Principal& who) const;
  bool empty() const { return waiters_.empty(); }

  // The same row by row (state.h).
  Table<PlaceInLine, Waiter>& rows() { return waiters_; }
  uint64_t next() const { return next_; }
  Saved Save() const { return {waiters_.rows(), next_}; }
  void Load(Saved saved);

  void CheckInvariants(const WaitLimits& limits) const;

 private:
  // Does `other`, which is before it, hold up such a request?
  static bool HoldsUp(const Waiter& other, const JobKey& job,
                      const LeaseRequest& asked, Rights rights, absl::Time now);
  InFront Before(Table<PlaceInLine, Waiter>::const_iterator end,
                 const JobKey& job, const LeaseRequest& asked, Rights rights,
                 absl::Time now) const;

  Table<PlaceInLine, Waiter> waiters_;
  uint64_t next_ = 1;
};

}  // namespace sluice::daemon
