// How many extents there are, and how often they change: each has a descriptor
// of the daemon's, and the device takes time to make and to destroy one.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "daemon/core/ledger.h"
#include "daemon/quota/quotas.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::daemon {

size_t Ledger::Extents() const {
  size_t sum = 0;
  for (const auto& [id, pool] : pools_) sum += pool.extents();
  return sum;
}

size_t Ledger::Owned(PrincipalId principal) const {
  size_t sum = 0;
  for (const auto& [id, pool] : pools_) sum += pool.OwnedBy(principal);
  return sum;
}

// Held back for the ranks of others that are attached, as far as these have not
// as many already.
size_t Ledger::HeldBack(PrincipalId from) const {
  size_t sum = 0;
  for (const auto& [principal, known] : principals_) {
    if (known.id == from || known.open == 0) continue;
    const size_t due = limits_.per_rank * static_cast<size_t>(known.open);
    const size_t has = Owned(known.id);
    sum += due > has ? due - has : 0;
  }
  return std::min(sum, limits_.all);
}

absl::Status Ledger::TooMany(const Principal& who, size_t has,
                             size_t more) const {
  const std::string limit = fmt::format(
      "{} has {} extents, {} more are asked for, and the limit is {}: lease "
      "fewer and larger pieces, free some, or raise ",
      Name(who), has, more, limits_.each);
  if (!limits_.each_of_open_files) {
    return absl::ResourceExhaustedError(limit + "extents in [quota]");
  }
  return ShortOf(Shortage::kOpenFiles,
                 limit + "the open files that sluiced may have (LimitNOFILE)");
}

absl::StatusOr<Ledger::Idle> Ledger::MakeRoom(const HolderState& holder,
                                              PoolId asked,
                                              const Pool::Parts& parts,
                                              absl::Time now) {
  Idle idle;
  if (parts.make.empty()) return idle;
  std::set<ExtentId> spared(parts.reuse.begin(), parts.reuse.end());
  spared.insert(parts.destroy.begin(), parts.destroy.end());
  const Pool& pool = pools_.at(asked);
  const auto own = static_cast<size_t>(std::count_if(
      parts.destroy.begin(), parts.destroy.end(),
      [&](ExtentId id) { return pool.OwnerOf(id) == holder.principal; }));
  const size_t made = parts.make.size();
  const size_t owned = Owned(holder.principal) - own + made;
  const size_t all = Extents() - parts.destroy.size() + made;
  const Share share = {static_cast<int64_t>(limits_.each),
                       static_cast<int64_t>(limits_.all)};
  const size_t most =
      std::min(limits_.all - HeldBack(holder.principal),
               static_cast<size_t>(share.all_for(static_cast<int64_t>(owned))));
  size_t over_own = owned > limits_.each ? owned - limits_.each : 0;
  size_t over_all = all > most ? all - most : 0;
  const auto take = [&](size_t count, std::optional<PrincipalId> of) {
    const auto from = [&](PoolId id) {
      for (ExtentId each : pools_.at(id).OldestKept(count, spared, of)) {
        idle.emplace_back(id, each);
        spared.insert(each);
        --count;
      }
    };
    from(asked);  // an old one of another pool may be needed there
    for (const auto& [id, each] : pools_) {
      if (id != asked && count > 0) from(id);
    }
    return count;
  };
  if (over_own > 0 && take(over_own, holder.principal) > 0) {
    return TooMany(holder.job.principal, owned - made, made);
  }
  over_all -= std::min(over_all, idle.size());
  if (over_all > 0 && take(over_all, std::nullopt) > 0) {
    return ShortOf(
        Shortage::kOpenFiles,
        fmt::format("this node has {} extents, {} more are asked for, and the "
                    "limit of all users together is {}, of which {} are held "
                    "back for attached ranks and users with few: wait until "
                    "some are freed, or "
                    "raise the open files that sluiced may have (LimitNOFILE)",
                    all - made, made, limits_.all, limits_.all - most));
  }
  const auto changes =
      static_cast<double>(made + parts.destroy.size() + idle.size());
  if (!allowances_.Take(holder.job.principal, changes, now)) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} has had too many extents made and destroyed, and the limit is {} "
        "a second: wait a moment, or keep leases instead of freeing them",
        Name(holder.job.principal), allowances_.per_second()));
  }
  return idle;
}

void Ledger::Destroy(const Idle& idle, Effects& effects) {
  for (const auto& [pool, id] : idle) {
    pools_.at(pool).Destroy(id);
    effects.push_back(DestroyExtent{id});
  }
  counts_.destroyed += idle.size();
  if (!idle.empty()) ForgetPrincipals();
}

absl::Duration Ledger::KeptFor(PoolId pool) const {
  return pool.kind == PoolKind::kHost
             ? std::max(limits_.kept_for, limits_.host_kept_for)
             : limits_.kept_for;
}

absl::Duration Ledger::OrphansKeptFor(PoolId pool, const Principal& who) const {
  return pool.kind == PoolKind::kHost && HasHeir(who)
             ? std::max(limits_.orphans_kept_for, limits_.host_kept_for)
             : limits_.orphans_kept_for;
}

// Destroys what its principal, the only one that could, will hardly lease
// again.
void Ledger::Trim(absl::Time now, Effects& effects) {
  Idle idle;
  const auto add = [&](PoolId pool, const std::vector<ExtentId>& extents) {
    for (ExtentId id : extents) idle.emplace_back(pool, id);
  };
  const auto room = [&] { return kTrimAtOnce - idle.size(); };
  for (const auto& [principal, known] : principals_) {
    for (const auto& [id, pool] : pools_) {
      if (known.alone_since + OrphansKeptFor(id, principal) > now) continue;
      add(id, pool.OldestKept(room(), {}, known.id));
    }
  }
  Destroy(std::exchange(idle, {}), effects);
  for (const auto& [id, pool] : pools_) {
    add(id, pool.KeptSince(now - KeptFor(id), room()));
  }
  Destroy(idle, effects);
}

absl::Time Ledger::NextTrim() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, pool] : pools_) {
    next = std::min(next, pool.OldestSince() + KeptFor(id));
    for (const auto& [principal, known] : principals_) {
      const absl::Time due = known.alone_since + OrphansKeptFor(id, principal);
      if (due < next && pool.KeptOf(known.id) > 0) next = due;
    }
  }
  return next;
}

void Ledger::GiveIdleHost(PrincipalId from, PrincipalId heir) {
  for (auto& [id, pool] : pools_) {
    if (id.kind != PoolKind::kHost) continue;
    const size_t has = Owned(heir);
    const size_t room = limits_.each > has ? limits_.each - has : 0;
    for (ExtentId each : pool.OldestKept(room, {}, from)) {
      pool.GiveTo(each, heir);
    }
  }
}

Bytes Ledger::IdleHost() const {
  Bytes idle;
  for (const auto& [id, pool] : pools_) {
    if (id.kind == PoolKind::kHost) idle += pool.kept();
  }
  return idle;
}

void Ledger::GiveUpIdleHost(Bytes bytes, Effects& effects) {
  Idle idle;
  for (const auto& [id, pool] : pools_) {
    if (id.kind != PoolKind::kHost) continue;
    for (ExtentId each : pool.OldestKept(kTrimAtOnce, {}, std::nullopt)) {
      if (bytes <= Bytes(0)) break;
      idle.emplace_back(id, each);
      bytes -= pool.SizeOf(each);
    }
  }
  Destroy(idle, effects);
}

void Ledger::CheckExtents() const {
  SLUICE_CHECK(Extents() <= limits_.all);
  for (const auto& [principal, known] : principals_) {
    SLUICE_CHECK(Owned(known.id) <= limits_.each);
    SLUICE_CHECK((known.holders == 0) ==
                 (known.alone_since < absl::InfiniteFuture()));
  }
  allowances_.CheckInvariants();
}

}  // namespace sluice::daemon
