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
  // Returns the state of the earlier lease that `waiter` may not pass; nullopt
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
  const size_t own = WaitingOf(who);
  if (own >= limits.each) {
    return TooMuch(who, Resource::kWaiting, static_cast<int64_t>(own),
                   static_cast<int64_t>(limits.each));
  }
  const Share share = {static_cast<int64_t>(limits.each),
                       static_cast<int64_t>(limits.all)};
  const auto with_it = static_cast<int64_t>(own) + 1;
  const auto used = static_cast<int64_t>(waiters_.size() - for_plans_.size());
  if (used < share.all_for(with_it)) return absl::OkStatus();
  return NoRoom(share, "leases waiting", used, with_it);
}

bool Woken::Wakes(const Waiter& waiter, absl::Time now) const {
  return all || pools.contains(waiter.asked.pool) ||
         users.contains(waiter.job.principal) ||
         (waiter.again != absl::InfinitePast() && waiter.again <= now);
}

void WaitingQueue::Join(Waiter waiter) {
  const PlaceInLine place{next_++};
  if (waiter.for_plan) for_plans_.insert(place);
  waiters_.Insert(place, std::move(waiter));
  wake_all_ = true;
}

void WaitingQueue::Erase(const PlaceInLine& place) {
  for_plans_.erase(place);
  waiters_.erase(place);
  wake_all_ = true;
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
  switch (other.lacks) {
    case Waiter::Lacks::kPool:
      if (other.asked.pool != asked.pool) return false;
      if (asked.size < HeldUpFrom(other, now)) return false;
      if (rights.promised && other.job != asks.job) return false;
      return !rights.reserved ||
             other.job.principal.uid == asks.job.principal.uid;
    case Waiter::Lacks::kUser:
      return other.asked.pool.kind == asked.pool.kind &&
             other.job.principal == asks.job.principal;
    case Waiter::Lacks::kJob:
      return other.asked.pool.kind == asked.pool.kind && other.job == asks.job;
  }
  return false;
}

WaitingQueue::InFront WaitingQueue::Before(
    Table<PlaceInLine, Waiter>::const_iterator end, const Waiter& asks,
    Rights rights, absl::Time now) const {
  InFront front;
  for (auto each = waiters_.begin(); each != end; ++each) {
    if (!HoldsUp(each->second, asks, rights, now)) continue;
    if (front.count++ == 0) front.first = &each->second;
  }
  return front;
}

WaitingQueue::InFront WaitingQueue::Before(const PlaceInLine& place,
                                           Rights rights,
                                           absl::Time now) const {
  const auto at = waiters_.find(place);
  return Before(at, at->second, rights, now);
}

void WaitingQueue::Release(
    absl::Time now, const Woken& woken,
    absl::FunctionRef<Rights(const Waiter&)> rights,
    absl::FunctionRef<Turn(const Waiter&)> take_turn,
    absl::FunctionRef<void(const PlaceInLine&, const Waiter&)> timed_out) {
  // Set when a lease of this pass changed in a way that may concern later ones.
  bool wake = TakeWakeAll();
  if (!wake && !woken.any() && now < NextDeadline()) return;
  const absl::Time before = std::exchange(released_at_, now);
  std::vector<PlaceInLine> line;
  for (const auto& [place, waiter] : waiters_) {
    if (!waiter.for_plan) line.push_back(place);
  }
  HeldUp held_up;
  // Returns what the lease lacks if it gets no turn; nullopt if it gets one.
  const auto without_turn =
      [&](const PlaceInLine& place,
          const Waiter& waiter) -> std::optional<Waiter::Lacks> {
    if (waiter.again > now) return waiter.lacks;
    const auto held = held_up.For(waiter);
    if (held != Waiter::Lacks::kPool) return held;
    const Rights has = rights(waiter);
    const bool passes = has.any() && Before(place, has, now).first == nullptr;
    return passes ? std::nullopt : held;
  };
  const auto stays = [&](const PlaceInLine& place, Waiter::Lacks lacks,
                         absl::Time again) {
    const Waiter& waiter = waiters_.at(place);
    wake = wake || waiter.lacks != lacks;
    if (waiter.lacks == lacks && waiter.again == again) return;
    Waiter& changed = waiters_.Edit(place);
    changed.lacks = lacks;
    changed.again = again;
  };
  for (const PlaceInLine& place : line) {
    const Waiter& waiter = waiters_.at(place);
    if (wake || woken.Wakes(waiter, now)) {
      if (const auto lacks = without_turn(place, waiter)) {
        stays(place, *lacks,
              waiter.again > now ? waiter.again : absl::InfinitePast());
      } else {
        const Turn turn = take_turn(waiter);
        if (turn.result != Turn::Result::kStays) {
          waiters_.erase(place);
          wake = true;
          continue;
        }
        stays(place, turn.lacks, turn.again);
      }
    }
    if (waiter.deadline > now) {
      held_up.Add(waiter, now);
      const absl::Time half = HalfOf(waiter);
      wake = wake || (before < half && half <= now);
      continue;
    }
    timed_out(place, waiter);
    waiters_.erase(place);
    wake = true;
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

size_t WaitingQueue::WaitingOf(const Principal& who) const {
  return static_cast<size_t>(
      std::ranges::count_if(waiters_.rows(), [&](const auto& each) {
        return each.second.job.principal == who && !each.second.for_plan;
      }));
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
