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
  Bytes usable = free();
  for (const auto& [order, id] : kept_by_age_) {
    const Extent& extent = extents_.at(id);
    const bool as_it_is =
        extent.principal == principal && extent.size == extent_;
    if (!extent.holders.empty() && !as_it_is) usable -= extent.size;
  }
  return usable;
}

absl::Status Pool::Refusal(Bytes asked) const {
  std::string held;
  Bytes stuck;
  for (const auto& [order, id] : kept_by_age_) {
    const Extent& extent = extents_.at(id);
    if (!extent.holders.empty()) stuck += extent.size;
  }
  if (stuck > Bytes(0)) {
    held = fmt::format(
        " ({} of it only as the extents it was freed in, until the processes "
        "that mapped them end)",
        FormatBytes(stuck));
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
  for (const auto& [order, id] : kept_by_age_) {
    if (need <= Bytes(0)) break;
    const Extent& extent = extents_.at(id);
    if (!extent.holders.empty() || spared.contains(id)) continue;
    found.push_back(id);
    need -= extent.size;
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
  Parts parts;
  Bytes left = size;
  const auto reuse = [&](Bytes each, int64_t count) {
    const auto kept = kept_by_size_.find({principal, each});
    if (kept == kept_by_size_.end() || count == 0) return;
    const auto n = std::min<size_t>(count, kept->second.size());
    parts.reuse.insert(parts.reuse.end(), kept->second.end() - n,
                       kept->second.end());
    left -= each * static_cast<int64_t>(n);
  };
  reuse(extent_, whole);
  reuse(tail, tail > Bytes(0) ? 1 : 0);
  if (!MakeRoom(left, parts)) return std::nullopt;
  return parts;
}

// A process that gave extents back may still map them, so they can be neither
// cut nor destroyed: the largest that fit, and the rest made, or one more than
// is needed.
std::optional<Pool::Parts> Pool::Patched(PrincipalId principal, Bytes size,
                                         Bytes most) const {
  Parts parts;
  Bytes left = size;
  std::vector<ExtentId> spare;  // larger ones first
  for (auto kept = kept_by_size_.rbegin(); kept != kept_by_size_.rend();
       ++kept) {
    if (kept->first.first != principal) continue;
    for (ExtentId id : kept->second) {
      const bool fits = kept->first.second <= left;
      (fits ? parts.reuse : spare).push_back(id);
      if (fits) left -= kept->first.second;
    }
  }
  if (MakeRoom(left, parts)) return parts;
  for (auto id = spare.rbegin(); id != spare.rend(); ++id) {
    const Bytes more = extents_.at(*id).size;
    if (more < left || size - left + more > most) continue;
    parts.reuse.push_back(*id);
    return parts;
  }
  return std::nullopt;
}

absl::StatusOr<Pool::Taken> Pool::Take(PrincipalId principal, Bytes size,
                                       Bytes most, uint64_t& next_extent) {
  SLUICE_CHECK(size > Bytes(0));
  if (size > free()) return Refusal(size);
  std::optional<Parts> parts = Regular(principal, size);
  if (!parts) parts = Patched(principal, size, most);
  if (!parts) return Refusal(size);
  Taken taken;
  taken.destroy = std::move(parts->destroy);
  for (ExtentId id : taken.destroy) {
    Unkeep(id, at(id));
    extents_.erase(id);
  }
  for (ExtentId id : parts->reuse) {
    Extent& extent = at(id);
    Unkeep(id, extent);
    extent.state = State::kLeased;
    leased_ += extent.size;
    taken.slices.push_back({id, extent.size});
  }
  for (Bytes each : parts->make) {
    const ExtentId id(next_extent++);
    extents_[id] = {.size = each, .principal = principal};
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
  extents_.erase(id);
}

void Pool::AddHolder(ExtentId id, SessionId by) {
  Extent& extent = at(id);
  SLUICE_CHECK(extent.state == State::kLeased);
  if (held_[by].insert(id).second) extent.holders.push_back(by);
}

void Pool::Keep(ExtentId id, Extent& extent) {
  extent.state = State::kKept;
  extent.kept_order = next_kept_order_++;
  kept_ += extent.size;
  kept_by_size_[{extent.principal, extent.size}].push_back(id);
  kept_by_age_[extent.kept_order] = id;
}

void Pool::Unkeep(ExtentId id, Extent& extent) {
  SLUICE_CHECK(extent.state == State::kKept);
  kept_ -= extent.size;
  kept_by_age_.erase(extent.kept_order);
  const auto list = kept_by_size_.find({extent.principal, extent.size});
  SLUICE_CHECK(list != kept_by_size_.end());
  // From the back: the newest are taken first.
  const auto it = std::find(list->second.rbegin(), list->second.rend(), id);
  SLUICE_CHECK(it != list->second.rend());
  list->second.erase(std::next(it).base());
  if (list->second.empty()) kept_by_size_.erase(list);
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
    std::erase(extent.holders, from);
    if (held_[to].insert(id).second) extent.holders.push_back(to);
  }
}

Bytes Pool::HolderGone(SessionId session) {
  const auto held = held_.find(session);
  Bytes back;
  if (held == held_.end()) return back;
  for (ExtentId id : held->second) {
    Extent& extent = at(id);
    std::erase(extent.holders, session);
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

void Pool::CheckInvariants() const {
  Bytes leased, quarantined, kept;
  size_t kept_count = 0, holds = 0;
  for (const auto& [id, extent] : extents_) {
    SLUICE_CHECK(extent.size > Bytes(0) && extent.size <= extent_);
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
        SLUICE_CHECK(kept_by_age_.at(extent.kept_order) == id);
        break;
    }
    for (SessionId by : extent.holders) {
      SLUICE_CHECK(held_.at(by).contains(id));
      ++holds;
    }
  }
  for (const auto& [by, ids] : held_) holds -= ids.size();
  size_t listed = 0;
  for (const auto& [key, ids] : kept_by_size_) listed += ids.size();
  SLUICE_CHECK(holds == 0);
  SLUICE_CHECK(kept_count == kept_by_age_.size() && kept_count == listed);
  SLUICE_CHECK(leased == leased_ && quarantined == quarantined_ &&
               kept == kept_);
  SLUICE_CHECK(unmade() >= Bytes(0));
  SLUICE_CHECK(leased_ + free() + quarantined_ == total_);
}

}  // namespace sluice::daemon
