// What was returned, and a process may still reach.
#include <algorithm>

#include "daemon/core/ledger.h"
#include "proto/base/status.h"

namespace sluice::daemon {

void Ledger::Linger(ExtentId id, PoolId pool, const JobKey& job,
                    LingeringState::Origin origin) {
  lingering_.Insert(id, {.origin = origin, .pool = pool, .job = job});
  to_ask_.push_back(id);
}

void Ledger::AskNow(absl::Time now, Effects& effects) {
  if (to_ask_.empty()) return;
  // The rest with those that are asked about again.
  for (size_t i = kAskAtOnce; i < to_ask_.size(); ++i) {
    lingering_.Edit(to_ask_[i]).answer = LingeringState::Answer::kHeld;
    ask_again_at_ = std::min(ask_again_at_, now + kAskEvery);
  }
  to_ask_.resize(std::min(to_ask_.size(), kAskAtOnce));
  effects.push_back(AskHolders{std::exchange(to_ask_, {})});
}

void Ledger::AskAgain(absl::Time now, Effects& effects) {
  if (now < ask_again_at_) return;
  std::vector<ExtentId> held;
  const auto from = lingering_.upper_bound(asked_last_);
  const auto add = [&](auto begin, auto end) {
    for (auto each = begin; each != end && held.size() < kAskAtOnce; ++each) {
      if (each->second.answer != LingeringState::Answer::kHeld) continue;
      held.push_back(each->first);
    }
  };
  add(from, lingering_.end());
  add(lingering_.begin(), from);
  ask_again_at_ = held.empty() ? absl::InfiniteFuture() : now + kAskEvery;
  if (held.empty()) return;
  asked_last_ = held.back();
  effects.push_back(AskHolders{std::move(held)});
}

Bytes Ledger::HolderKnown(ExtentId id, Held held, absl::Time now) {
  LingeringState* found = lingering_.Find(id);
  if (found == nullptr) return Bytes(0);
  LingeringState& lingering = *found;
  const Pool& pool = pools_.at(lingering.pool);
  if (held == Held::kYes) {
    lingering.answer = LingeringState::Answer::kHeld;
    ask_again_at_ = std::min(ask_again_at_, now + kAskEvery);
    return Bytes(0);
  }
  if (held == Held::kUnknown && pool.HasHolders(id)) {
    lingering.answer = LingeringState::Answer::kUnknown;
    return Bytes(0);
  }
  const bool of_the_dead =
      lingering.origin == LingeringState::Origin::kOrphaned;
  const bool host = lingering.pool.kind == PoolKind::kHost;
  const Bytes size = pool.SizeOf(id);
  Back(id, lingering, now);
  return of_the_dead && host ? size : Bytes(0);
}

Bytes Ledger::SetOutside(HeldOutside held) {
  Bytes came_back;
  for (auto& [id, pool] : pools_) {
    const Bytes before = pool.outside();
    // Nothing of a GPU that cannot be used is free.
    pool.SetOutside(faulty_.contains(id) ? pool.total() : OutsideIn(id, held));
    if (id.kind == PoolKind::kHost && pool.outside() < before) {
      came_back += before - pool.outside();
    }
  }
  outside_ = std::move(held);
  return came_back;
}

void Ledger::Back(ExtentId id, const LingeringState& lingering,
                  absl::Time now) {
  Uncharge({id});
  recharged_.insert(lingering.job.principal);
  pools_.at(lingering.pool).Back(id, now);
  lingering_.erase(id);
}

absl::Status Ledger::Admit(const JobKey& job, PoolId pool, Bytes size,
                           const Pool::Parts& parts) {
  // What lingers is charged already, perhaps to another job.
  Uncharge(parts.reuse);
  absl::Status admitted = budgets_.Admit(job, pool.kind, size);
  if (!admitted.ok()) Recharge(parts.reuse);
  return admitted;
}

// A process that gave memory back and may still map it pays for it, so to make
// other extents for a budget's last bytes would be refused where it could have
// its own again: then these come first, as where a pool is full.
Ledger::Chosen Ledger::Choose(const HolderState& holder,
                              const LeaseRequest& asked) {
  const JobKey& job = holder.job;
  const Pool& pool = pools_.at(asked.pool);
  const PoolKind kind = asked.pool.kind;
  const Bytes withheld = Withheld(asked.pool, &job.principal);
  // A rank's HBM is a hard limit; host memory may be a little more.
  const bool exact = kind == PoolKind::kGpu;
  auto parts =
      pool.Choose(holder.principal, asked.size,
                  exact ? asked.size : budgets_.Left(job, kind), withheld);
  absl::Status admitted =
      Admit(job, asked.pool, asked.size, parts.ok() ? *parts : Pool::Parts{});
  if (admitted.ok()) return {std::move(parts)};
  const Bytes left = std::max(budgets_.Left(job, kind), Bytes(0));
  parts = pool.Choose(holder.principal, asked.size,
                      exact ? asked.size : std::max(asked.size, HostLeft(job)),
                      std::max(withheld, pool.free() - left));
  if (parts.ok() && Admit(job, asked.pool, pool.SizeOf(*parts), *parts).ok()) {
    return {std::move(parts)};
  }
  return {std::move(admitted), RefusedBy::kBudget};
}

void Ledger::Uncharge(const std::vector<ExtentId>& extents) {
  for (ExtentId id : extents) {
    const auto found = lingering_.find(id);
    if (found == lingering_.end()) continue;
    const LingeringState& each = found->second;
    budgets_.Refund(each.job, each.pool.kind, pools_.at(each.pool).SizeOf(id));
  }
}

void Ledger::Recharge(const std::vector<ExtentId>& extents) {
  for (ExtentId id : extents) {
    const auto found = lingering_.find(id);
    if (found == lingering_.end()) continue;
    const LingeringState& each = found->second;
    budgets_.Charge(each.job, each.pool.kind, pools_.at(each.pool).SizeOf(id));
  }
}

template <typename Mine>
Bytes Ledger::LingeringHost(Mine mine) const {
  Bytes sum;
  for (const auto& [id, each] : lingering_) {
    if (each.pool.kind == PoolKind::kHost && mine(each.job)) {
      sum += pools_.at(each.pool).SizeOf(id);
    }
  }
  return sum;
}

Bytes Ledger::HostLeft(const Principal& principal) const {
  const Bytes left = budgets_.LeftOfPrincipal(principal, PoolKind::kHost);
  if (left >= Limits::kUnlimited) return left;
  return left + LingeringHost([&](const JobKey& job) {
           return job.principal == principal;
         });
}

Bytes Ledger::HostLeft(const JobKey& job) const {
  const Bytes left = budgets_.LeftOfJob(job, PoolKind::kHost);
  if (left >= Limits::kUnlimited) return left;
  return left + LingeringHost([&](const JobKey& each) { return each == job; });
}

// What lingers in pools is what is asked about, and still known by its holders
// wherever the device does not say.
void Ledger::CheckLingering() const {
  std::map<PoolId, Bytes> sums;
  for (const auto& [id, each] : lingering_) {
    const Pool& pool = pools_.at(each.pool);
    SLUICE_CHECK(pool.IsLingering(id));
    SLUICE_CHECK(each.answer != LingeringState::Answer::kUnknown ||
                 pool.HasHolders(id));
    sums[each.pool] += pool.SizeOf(id);
  }
  for (const auto& [id, pool] : pools_) {
    SLUICE_CHECK(sums[id] == pool.lingering());
  }
  SLUICE_CHECK(to_ask_.empty());
}

}  // namespace sluice::daemon
