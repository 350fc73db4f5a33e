#include "daemon/core/pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::daemon {

std::string Name(PoolId pool) {
  return fmt::format("{} {}", pool.kind == PoolKind::kGpu ? "GPU" : "NUMA node",
                     pool.ordinal);
}

Pool::Pool(PoolId id, Bytes total, Bytes extent)
    : id_(id), total_(total), extent_(extent) {
  SLUICE_CHECK(extent > Bytes(0));
}

Pool::Extent& Pool::at(ExtentId id) {
  const auto found = extents_.find(id);
  SLUICE_CHECK(found != extents_.end());
  return found->second;
}

Bytes Pool::UsableBy(PrincipalId principal) const {
  const auto own = kept_by_size_.find({principal, extent_});
  const Bytes as_it_is =
      own != kept_by_size_.end() ? own->second.held : Bytes(0);
  return free() - (kept_held_ - as_it_is);
}

absl::Status Pool::Refusal(Bytes asked) const {
  std::string held;
  if (kept_held_ > Bytes(0)) {
    held = fmt::format(
        " ({} of it only as the extents it was freed in, until the processes "
        "that mapped them end)",
        FormatBytes(kept_held_));
  }
  if (quarantined_ > Bytes(0)) {
    held += fmt::format(
        "; {} belong to sessions that ended while their process lives",
        FormatBytes(quarantined_));
  }
  return ShortOf(
      id_.kind == PoolKind::kGpu ? Shortage::kGpuMemory : Shortage::kHostMemory,
      fmt::format(
          "{}: asked {}, free {} of {}{}; free a lease, wait for one to end "
          "(sluicectl status), or give the pool more in [pools]",
          Name(id_), FormatBytes(asked), FormatBytes(free()),
          FormatBytes(total_), held));
}

std::vector<ExtentId> Pool::Reclaimable(
    Bytes need, const std::set<ExtentId>& spared) const {
  std::vector<ExtentId> found;
  if (need > kept_ - kept_held_) return found;
  for (const auto& [order, id] : reclaimable_) {
    if (need <= Bytes(0)) break;
    if (spared.contains(id)) continue;
    found.push_back(id);
    need -= extents_.at(id).size;
  }
  if (need > Bytes(0)) found.clear();
  return found;
}

bool Pool::MakeRoom(Bytes bytes, Parts& parts) const {
  if (bytes <= Bytes(0)) return true;
  if (bytes > unmade()) {
    parts.destroy =
        Reclaimable(bytes - unmade(), {parts.reuse.begin(), parts.reuse.end()});
    if (parts.destroy.empty()) return false;
  }
  for (; bytes > extent_; bytes -= extent_) parts.make.push_back(extent_);
  parts.make.push_back(bytes);
  return true;
}

std::optional<Pool::Parts> Pool::Regular(PrincipalId principal,
                                         Bytes size) const {
  // Which kept extents serve, newest first: their pages are warm.
  const int64_t whole = size / extent_;
  const Bytes tail = size - whole * extent_;
  Bytes left = size;
  const auto count = [&](Bytes each, int64_t wanted) {
    const auto kept = kept_by_size_.find({principal, each});
    if (kept == kept_by_size_.end()) return int64_t{0};
    const int64_t n = std::min(wanted, std::ssize(kept->second.by_age));
    left -= each * n;
    return n;
  };
  const int64_t wholes = count(extent_, whole);
  const int64_t tails = count(tail, tail > Bytes(0) ? 1 : 0);
  if (left > makeable()) return std::nullopt;
  Parts parts;
  const auto reuse = [&](Bytes each, int64_t n) {
    if (n == 0) return;
    auto id = kept_by_size_.at({principal, each}).by_age.rbegin();
    for (; n > 0; --n, ++id) parts.reuse.push_back(id->second);
  };
  reuse(extent_, wholes);
  reuse(tail, tails);
  if (!MakeRoom(left, parts)) return std::nullopt;
  return parts;
}

// A process that gave extents back may still map them, so they can be neither
// cut nor destroyed: the largest that fit, and the rest made, or one more than
// is needed.
std::optional<Pool::Parts> Pool::Patched(PrincipalId principal, Bytes size,
                                         Bytes most) const {
  Bytes left = size;
  std::optional<ExtentId> spare;  // the smallest that is too large
  std::vector<std::pair<const ByAge*, int64_t>> picked;
  const auto begin = kept_by_size_.lower_bound({principal, Bytes(0)});
  auto kept = kept_by_size_.lower_bound({principal, extent_ + Bytes(1)});
  while (kept != begin) {
    --kept;
    const Bytes each = kept->first.second;
    const ByAge& ids = kept->second.by_age;
    const int64_t n = std::min(left / each, std::ssize(ids));
    if (n > 0) picked.emplace_back(&ids, n);
    if (n < std::ssize(ids)) spare = ids.begin()->second;
    left -= each * n;
  }
  if (spare && size - left + extents_.at(*spare).size > most) spare.reset();
  if (left > makeable() && !spare) return std::nullopt;
  Parts parts;
  for (const auto& [ids, n] : picked) {
    auto id = ids->rbegin();
    for (int64_t i = 0; i < n; ++i, ++id) parts.reuse.push_back(id->second);
  }
  if (MakeRoom(left, parts)) return parts;
  if (!spare) return std::nullopt;
  parts.reuse.push_back(*spare);
  return parts;
}

absl::StatusOr<Pool::Taken> Pool::Take(PrincipalId principal, Bytes size,
                                       Bytes most, ExtentId first) {
  SLUICE_CHECK(size > Bytes(0));
  if (size > free()) return Refusal(size);
  std::optional<Parts> parts = Regular(principal, size);
  if (!parts) parts = Patched(principal, size, most);
  if (!parts) return Refusal(size);
  Taken taken;
  taken.destroy = std::move(parts->destroy);
  for (ExtentId id : taken.destroy) {
    Unkeep(id, at(id));
    Erase(id);
  }
  for (ExtentId id : parts->reuse) {
    Extent& extent = at(id);
    Unkeep(id, extent);
    extent.state = State::kLeased;
    leased_ += extent.size;
    taken.slices.push_back({id, extent.size});
  }
  for (Bytes each : parts->make) {
    const ExtentId id(first.value() + taken.make.size());
    extents_[id] = {.size = each, .principal = principal};
    ++owned_[principal];
    leased_ += each;
    taken.make.push_back({id, each});
    taken.slices.push_back({id, each});
  }
  return taken;
}

void Pool::Made(ExtentId id) {
  Extent& extent = at(id);
  SLUICE_CHECK(extent.state == State::kMaking);
  extent.state = State::kLeased;
}

void Pool::Failed(ExtentId id) {
  const Extent& extent = at(id);
  SLUICE_CHECK(extent.state == State::kMaking);
  leased_ -= extent.size;
  Erase(id);
}

void Pool::AddHolder(ExtentId id, SessionId by) {
  Extent& extent = at(id);
  SLUICE_CHECK(extent.state == State::kLeased);
  if (held_[by].insert(id).second) extent.holders.push_back(by);
}

void Pool::Erase(ExtentId id) {
  const auto owned = owned_.find(at(id).principal);
  if (--owned->second == 0) owned_.erase(owned);
  extents_.erase(id);
}

void Pool::Keep(ExtentId id, Extent& extent) {
  extent.state = State::kKept;
  extent.kept_order = next_kept_order_++;
  ListKept(id, extent);
}

void Pool::ListKept(ExtentId id, const Extent& extent) {
  kept_ += extent.size;
  Kept& kept = kept_by_size_[{extent.principal, extent.size}];
  kept.by_age[extent.kept_order] = id;
  if (extent.holders.empty()) {
    reclaimable_[extent.kept_order] = id;
  } else {
    kept.held += extent.size;
    kept_held_ += extent.size;
  }
}

void Pool::Unkeep(ExtentId id, Extent& extent) {
  SLUICE_CHECK(extent.state == State::kKept);
  const auto kept = kept_by_size_.find({extent.principal, extent.size});
  SLUICE_CHECK(kept != kept_by_size_.end() &&
               kept->second.by_age.at(extent.kept_order) == id);
  kept_ -= extent.size;
  kept->second.by_age.erase(extent.kept_order);
  if (reclaimable_.erase(extent.kept_order) == 0) {
    kept->second.held -= extent.size;
    kept_held_ -= extent.size;
  }
  if (kept->second.by_age.empty()) kept_by_size_.erase(kept);
}

void Pool::DropHolder(ExtentId id, Extent& extent, SessionId holder) {
  std::erase(extent.holders, holder);
  if (extent.state != State::kKept || !extent.holders.empty()) return;
  reclaimable_[extent.kept_order] = id;
  kept_by_size_.at({extent.principal, extent.size}).held -= extent.size;
  kept_held_ -= extent.size;
}

void Pool::Return(ExtentId id) {
  Extent& extent = at(id);
  SLUICE_CHECK(extent.state == State::kLeased);
  leased_ -= extent.size;
  Keep(id, extent);
}

void Pool::Quarantine(ExtentId id, SessionId by) {
  Extent& extent = at(id);
  SLUICE_CHECK(extent.state == State::kLeased);
  leased_ -= extent.size;
  quarantined_ += extent.size;
  extent.state = State::kQuarantined;
  extent.quarantined_for = by;
}

void Pool::TransferHolds(SessionId from, SessionId to) {
  const auto held = held_.find(from);
  if (held == held_.end()) return;
  const std::set<ExtentId> ids = std::move(held->second);
  held_.erase(held);
  for (ExtentId id : ids) {
    Extent& extent = at(id);
    SLUICE_CHECK(extent.state != State::kQuarantined ||
                 extent.quarantined_for != from);
    if (held_[to].insert(id).second) extent.holders.push_back(to);
    DropHolder(id, extent, from);
  }
}

Bytes Pool::HolderGone(SessionId session) {
  const auto held = held_.find(session);
  Bytes back;
  if (held == held_.end()) return back;
  for (ExtentId id : held->second) {
    Extent& extent = at(id);
    DropHolder(id, extent, session);
    if (extent.state == State::kQuarantined &&
        extent.quarantined_for == session) {
      quarantined_ -= extent.size;
      back += extent.size;
      Keep(id, extent);
    }
  }
  held_.erase(held);
  return back;
}

void Pool::List(ExtentId id, const Extent& extent) {
  ++owned_[extent.principal];
  for (SessionId holder : extent.holders) held_[holder].insert(id);
  switch (extent.state) {
    case State::kMaking:
    case State::kLeased:
      leased_ += extent.size;
      return;
    case State::kQuarantined:
      quarantined_ += extent.size;
      return;
    case State::kKept:
      return ListKept(id, extent);
  }
}

void Pool::Load(const Saved& saved) {
  SLUICE_CHECK(extents_.empty());
  extents_ = saved.extents;
  next_kept_order_ = saved.next_kept_order;
  for (const auto& [id, extent] : extents_) List(id, extent);
}

void Pool::CheckInvariants() const {
  Bytes leased, quarantined, kept, kept_held;
  size_t kept_count = 0, holds = 0;
  std::map<PrincipalId, size_t> owned;
  for (const auto& [id, extent] : extents_) {
    SLUICE_CHECK(extent.size > Bytes(0) && extent.size <= extent_);
    ++owned[extent.principal];
    switch (extent.state) {
      case State::kMaking:
        SLUICE_CHECK(extent.holders.empty());
        [[fallthrough]];
      case State::kLeased:
        leased += extent.size;
        break;
      case State::kQuarantined:
        // Someone who may still map it must be known, or it never comes back.
        SLUICE_CHECK(std::count(extent.holders.begin(), extent.holders.end(),
                                extent.quarantined_for) == 1);
        quarantined += extent.size;
        break;
      case State::kKept:
        kept += extent.size;
        ++kept_count;
        if (!extent.holders.empty()) kept_held += extent.size;
        SLUICE_CHECK(reclaimable_.contains(extent.kept_order) ==
                     extent.holders.empty());
        break;
    }
    for (SessionId by : extent.holders) {
      SLUICE_CHECK(held_.at(by).contains(id));
      ++holds;
    }
  }
  for (const auto& [by, ids] : held_) holds -= ids.size();
  size_t listed = 0;
  Bytes listed_held;
  for (const auto& [key, kept_of_size] : kept_by_size_) {
    listed += kept_of_size.by_age.size();
    listed_held += kept_of_size.held;
  }
  SLUICE_CHECK(holds == 0);
  SLUICE_CHECK(owned == owned_);
  SLUICE_CHECK(kept_count == listed && reclaimable_.size() <= listed);
  SLUICE_CHECK(kept_held == kept_held_ && listed_held == kept_held_);
  SLUICE_CHECK(leased == leased_ && quarantined == quarantined_ &&
               kept == kept_);
  SLUICE_CHECK(unmade() >= Bytes(0));
  SLUICE_CHECK(leased_ + free() + quarantined_ == total_);
}

}  // namespace sluice::daemon
