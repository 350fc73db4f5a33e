#include "daemon/core/waiting.h"

#include <algorithm>

#include "daemon/quota/quotas.h"
#include "proto/base/find.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// Returns when the second half of the lease's wait begins.
absl::Time HalfOf(const Waiter& waiter) {
  return waiter.since + (waiter.deadline - waiter.since) / 2;
}

// Returns the size of the smallest later request that may not pass the lease,
// which waits for its pool.
Bytes HeldUpFrom(const Waiter& waiter, absl::Time now) {
  return now < HalfOf(waiter) ? waiter.asked.size : Bytes(0);
}

// The later requests that waiting leases hold up, by pool, user and job.
class HeldUp {
 public:
  void Add(const Waiter& waiter, absl::Time now) {
    const PoolId pool = waiter.asked.pool;
    switch (waiter.lacks) {
      case Waiter::Lacks::kPool: {
        Bytes& from = pools_.try_emplace(pool, waiter.asked.size).first->second;
        from = std::min(from, HeldUpFrom(waiter, now));
        return;
      }
      case Waiter::Lacks::kUser:
        users_.insert({waiter.job.principal, pool.kind});
        return;
      case Waiter::Lacks::kJob:
        jobs_.insert({waiter.job, pool.kind});
        return;
    }
  }
  // Returns the `lacks` of an earlier lease that `waiter` may not pass; nullopt
  // if there is none.
  std::optional<Waiter::Lacks> For(const Waiter& waiter) const {
    const PoolKind kind = waiter.asked.pool.kind;
    if (users_.contains({waiter.job.principal, kind})) {
      return Waiter::Lacks::kUser;
    }
    if (jobs_.contains({waiter.job, kind})) return Waiter::Lacks::kJob;
    const Bytes* from = FindOrNull(pools_, waiter.asked.pool);
    if (from && waiter.asked.size >= *from) return Waiter::Lacks::kPool;
    return std::nullopt;
  }

 private:
  std::map<PoolId, Bytes> pools_;  // smallest size that is held up
  std::set<std::pair<Principal, PoolKind>> users_;
  std::set<std::pair<JobKey, PoolKind>> jobs_;
};

}  // namespace

absl::Status WaitingQueue::MayJoin(const Principal& who,
                                   const WaitLimits& limits) const {
  const int64_t own =
      std::ranges::count_if(waiters_.rows(), [&](const auto& each) {
        return each.second.job.principal == who && !each.second.for_plan;
      });
  const Share share = {static_cast<int64_t>(limits.each),
                       static_cast<int64_t>(limits.all)};
  if (own >= share.each) {
    return TooMuch(who, Resource::kWaiting, own, share.each);
  }
  const int64_t used = std::ssize(waiters_.rows()) - std::ssize(for_plans_);
  if (used < share.all_for(own + 1)) return absl::OkStatus();
  return NoRoom(share, "leases waiting", used, own + 1);
}

std::optional<Waiter> WaitingQueue::Leave(SessionId session,
                                          RequestId request) {
  for (const auto& [place, waiter] : waiters_) {
    if (waiter.session != session || waiter.request != request) continue;
    const Waiter left = waiter;
    Erase(PlaceInLine(place));
    return left;
  }
  return std::nullopt;
}

size_t WaitingQueue::SessionEnded(SessionId session) {
  size_t in_line = 0;
  for (auto each = waiters_.begin(); each != waiters_.end();) {
    const auto& [place, waiter] = *each++;
    if (waiter.session != session) continue;
    in_line += !waiter.for_plan;
    Erase(PlaceInLine(place));
  }
  return in_line;
}

bool WaitingQueue::HoldsUp(const Waiter& other, const Waiter& asks,
                           Rights rights, absl::Time now) {
  if (other.for_plan) return false;
  const LeaseRequest& asked = asks.asked;
  if (other.lacks == Waiter::Lacks::kPool) {
    return other.asked.pool == asked.pool &&
           asked.size >= HeldUpFrom(other, now) &&
           (!rights.promised || other.job == asks.job) &&
           (!rights.reserved ||
            other.job.principal.uid == asks.job.principal.uid);
  }
  return other.asked.pool.kind == asked.pool.kind &&
         (other.lacks == Waiter::Lacks::kUser
              ? other.job.principal == asks.job.principal
              : other.job == asks.job);
}

WaitingQueue::InFront WaitingQueue::Before(const Waiter& asks, Rights rights,
                                           absl::Time now,
                                           const PlaceInLine* place) const {
  InFront front;
  for (const auto& [at, other] : waiters_) {
    if (place != nullptr && at == *place) break;
    if (!HoldsUp(other, asks, rights, now)) continue;
    if (front.count++ == 0) front.first = &other;
  }
  return front;
}

void WaitingQueue::Release(
    absl::Time now, const Woken& woken,
    absl::FunctionRef<Rights(const Waiter&)> rights,
    absl::FunctionRef<Turn(const Waiter&)> take_turn,
    absl::FunctionRef<void(const PlaceInLine&, const Waiter&)> timed_out) {
  // Set if later leases need a turn because this pass changed or ended a lease.
  bool wake = TakeWakeAll();
  if (!wake && !woken.any() && now < NextDeadline()) return;
  const absl::Time before = std::exchange(released_at_, now);
  std::vector<PlaceInLine> line;
  for (const auto& [place, waiter] : waiters_) {
    if (!waiter.for_plan) line.push_back(place);
  }
  HeldUp held_up;
  // Gives the lease a turn unless an earlier lease holds it up.
  const auto turn_of = [&](const PlaceInLine& place,
                           const Waiter& waiter) -> Turn {
    if (waiter.again > now) return Stay{waiter.lacks, waiter.again};
    const auto held = held_up.For(waiter);
    if (held == Waiter::Lacks::kPool) {
      const Rights has = rights(waiter);
      if (has.any() && Before(waiter, has, now, &place).first == nullptr) {
        return take_turn(waiter);
      }
    }
    return held ? Stay{*held} : take_turn(waiter);
  };
  for (const PlaceInLine& place : line) {
    const Waiter& waiter = waiters_.at(place);
    bool stays = true;
    if (wake || woken.Wakes(waiter, now)) {
      const Turn turn = turn_of(place, waiter);
      stays = turn.has_value();
      wake |= stays && waiter.lacks != turn->lacks;
      if (stays &&
          (waiter.lacks != turn->lacks || waiter.again != turn->again)) {
        Waiter& changed = waiters_.Edit(place);
        changed.lacks = turn->lacks;
        changed.again = turn->again;
      }
    }
    if (stays && waiter.deadline <= now) {
      timed_out(place, waiter);
      stays = false;
    }
    if (stays) {
      held_up.Add(waiter, now);
      const absl::Time half = HalfOf(waiter);
      wake = wake || (before < half && half <= now);
    } else {
      waiters_.erase(place);
      wake = true;
    }
  }
}

absl::Time WaitingQueue::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [place, waiter] : waiters_) {
    next = std::min(next, waiter.deadline);
    if (waiter.again != absl::InfinitePast()) {
      next = std::min(next, waiter.again);
    }
  }
  return next;
}

void WaitingQueue::Load(Saved saved) {
  waiters_.Load(std::move(saved.waiters));
  next_ = saved.next;
  for_plans_.clear();
  for (const auto& [place, waiter] : waiters_) {
    if (waiter.for_plan) for_plans_.insert(place);
  }
  wake_all_ = true;
}

void WaitingQueue::CheckInvariants(const WaitLimits& limits) const {
  SLUICE_CHECK(waiters_.size() - for_plans_.size() <= limits.all);
  std::set<std::pair<SessionId, RequestId>> requests;
  std::set<SessionId> for_plans;
  std::map<Principal, size_t> users;
  for (const auto& [place, waiter] : waiters_) {
    SLUICE_CHECK(place.number < next_);
    SLUICE_CHECK(requests.insert({waiter.session, waiter.request}).second);
    SLUICE_CHECK(waiter.for_plan == for_plans_.contains(place));
    if (waiter.for_plan) {
      SLUICE_CHECK(for_plans.insert(waiter.session).second);
      continue;
    }
    SLUICE_CHECK(++users[waiter.job.principal] <= limits.each);
    SLUICE_CHECK(waiter.asked.wait > absl::ZeroDuration());
    SLUICE_CHECK(waiter.deadline == waiter.since + waiter.asked.wait);
  }
}

}  // namespace sluice::daemon
