#include "daemon/core/pool/pool.h"

#include <fmt/format.h>

#include <utility>

#include "proto/base/status.h"

namespace sluice::daemon {

std::string Name(PoolId pool) {
  return fmt::format("{} {}", pool.kind == PoolKind::kGpu ? "GPU" : "NUMA node",
                     pool.ordinal);
}

Pool::Pool(PoolId id, Bytes total, Bytes extent,
           std::string_view outside_holders)
    : id_(id),
      total_(total),
      extent_(extent),
      outside_holders_(outside_holders) {
  SLUICE_CHECK(extent > Bytes(0));
}

Pool::Extent& Pool::at(ExtentId id) { return extents_.Edit(id); }

void Pool::Charge(PrincipalId principal, Bytes size, Bytes lingering) {
  Charged& charged = charged_[principal];
  charged.all += size;
  charged.lingering += lingering;
  if (charged == Charged()) charged_.erase(principal);
}

Pool::Taken Pool::Take(PrincipalId principal, const Parts& parts,
                       ExtentId first) {
  Taken taken;
  for (ExtentId id : parts.destroy) Destroy(id);
  for (ExtentId id : parts.reuse) {
    Extent& extent = at(id);
    UnlistIdle(id, extent);
    extent.state = State::kLeased;
    leased_ += extent.size;
    Charge(principal, extent.size);
    taken.slices.push_back({id, extent.size});
  }
  for (Bytes each : parts.make) {
    const ExtentId id(first.value() + taken.make.size());
    extents_.Insert(id, {.size = each, .principal = principal});
    ++owned_[principal];
    leased_ += each;
    making_ += each;
    Charge(principal, each);
    taken.make.push_back({id, each});
    taken.slices.push_back({id, each});
  }
  return taken;
}

void Pool::Made(ExtentId id) {
  Extent& extent = at(id);
  SLUICE_CHECK(extent.state == State::kMaking);
  making_ -= extent.size;
  extent.state = State::kLeased;
}

void Pool::Failed(ExtentId id) {
  const Extent& extent = at(id);
  SLUICE_CHECK(extent.state == State::kMaking);
  leased_ -= extent.size;
  making_ -= extent.size;
  Charge(extent.principal, Bytes(0) - extent.size);
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

void Pool::Rest(ExtentId id, Extent& extent, State state) {
  extent.state = state;
  extent.idle_order = next_idle_order_++;
  ListIdle(id, extent);
}

void Pool::ListIdle(ExtentId id, const Extent& extent) {
  Idle& idle = idle_by_size_[{extent.principal, extent.size}];
  idle.by_age[extent.idle_order] = id;
  if (extent.state == State::kKept) {
    kept_ += extent.size;
    kept_by_age_[extent.idle_order] = id;
    kept_of_[extent.principal][extent.idle_order] = id;
  } else {
    lingering_ += extent.size;
    idle.lingering += extent.size;
    Charge(extent.principal, extent.size, extent.size);
  }
}

void Pool::UnlistIdle(ExtentId id, const Extent& extent) {
  const auto idle = idle_by_size_.find({extent.principal, extent.size});
  SLUICE_CHECK(idle != idle_by_size_.end() &&
               idle->second.by_age.at(extent.idle_order) == id);
  idle->second.by_age.erase(extent.idle_order);
  if (extent.state == State::kKept) {
    kept_ -= extent.size;
    kept_by_age_.erase(extent.idle_order);
    const auto of = kept_of_.find(extent.principal);
    of->second.erase(extent.idle_order);
    if (of->second.empty()) kept_of_.erase(of);
  } else {
    lingering_ -= extent.size;
    idle->second.lingering -= extent.size;
    Charge(extent.principal, Bytes(0) - extent.size, Bytes(0) - extent.size);
  }
  if (idle->second.by_age.empty()) idle_by_size_.erase(idle);
}

bool Pool::Return(ExtentId id, absl::Time now) {
  Extent& extent = at(id);
  SLUICE_CHECK(extent.state == State::kLeased);
  leased_ -= extent.size;
  Charge(extent.principal, Bytes(0) - extent.size);
  const bool lingers = !extent.holders.empty();
  if (!lingers) extent.kept_since = now;
  Rest(id, extent, lingers ? State::kLingering : State::kKept);
  return lingers;
}

void Pool::Back(ExtentId id, absl::Time now) {
  Extent& extent = at(id);
  SLUICE_CHECK(extent.state == State::kLingering);
  UnlistIdle(id, extent);
  for (SessionId holder : std::exchange(extent.holders, {})) {
    const auto held = held_.find(holder);
    held->second.erase(id);
    if (held->second.empty()) held_.erase(held);
  }
  extent.kept_since = now;
  Rest(id, extent, State::kKept);
}

void Pool::Destroy(ExtentId id) {
  SLUICE_CHECK(at(id).state == State::kKept);
  UnlistIdle(id, at(id));
  Erase(id);
}

void Pool::GiveTo(ExtentId id, PrincipalId heir) {
  Extent& extent = at(id);
  SLUICE_CHECK(extent.state == State::kKept);
  UnlistIdle(id, extent);
  const auto owned = owned_.find(extent.principal);
  if (--owned->second == 0) owned_.erase(owned);
  ++owned_[heir];
  extent.principal = heir;
  ListIdle(id, extent);
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
    std::erase(extent.holders, from);
  }
}

Pool::Left Pool::HolderGone(SessionId session) {
  Left left;
  const auto held = held_.find(session);
  if (held == held_.end()) return left;
  for (ExtentId id : held->second) {
    Extent& extent = at(id);
    std::erase(extent.holders, session);
    if (extent.state == State::kQuarantined &&
        extent.quarantined_for == session) {
      quarantined_ -= extent.size;
      Charge(extent.principal, Bytes(0) - extent.size);
      Rest(id, extent, State::kLingering);
      left.unquarantined.push_back(id);
    } else if (extent.state == State::kLingering && extent.holders.empty()) {
      left.alone.push_back(id);
    }
  }
  held_.erase(held);
  return left;
}

void Pool::List(ExtentId id, const Extent& extent) {
  ++owned_[extent.principal];
  for (SessionId holder : extent.holders) held_[holder].insert(id);
  switch (extent.state) {
    case State::kMaking:
      making_ += extent.size;
      [[fallthrough]];
    case State::kLeased:
      leased_ += extent.size;
      return Charge(extent.principal, extent.size);
    case State::kQuarantined:
      quarantined_ += extent.size;
      return Charge(extent.principal, extent.size);
    case State::kLingering:
    case State::kKept:
      return ListIdle(id, extent);
  }
}

void Pool::Load(const Saved& saved) {
  SLUICE_CHECK(extents_.empty());
  extents_.Load(saved.extents);
  next_idle_order_ = saved.next_idle_order;
  for (const auto& [id, extent] : extents_) List(id, extent);
}

}  // namespace sluice::daemon
