#include "daemon/core/pool/pool.h"

#include <fmt/format.h>

#include <utility>

#include "proto/base/shortage.h"
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

void Pool::Charge(PrincipalId principal, Bytes size, Bytes lingering) {
  Charged& charged = charged_[principal];
  charged.all += size;
  charged.lingering += lingering;
  if (charged == Charged()) charged_.erase(principal);
}

void Pool::ChangeOwned(PrincipalId principal, int more) {
  size_t& owned = owned_[principal];
  owned += more;
  if (owned == 0) owned_.erase(principal);
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
    ChangeOwned(principal, 1);
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
  ChangeOwned(at(id).principal, -1);
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
  ChangeOwned(extent.principal, -1);
  ChangeOwned(heir, 1);
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
  ChangeOwned(extent.principal, 1);
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

// --- The parts of a lease: which idle extents, and what is made for it

Bytes Pool::UsableBy(PrincipalId principal, Bytes withheld) const {
  const Idle* own = FindOrNull(idle_by_size_, {principal, extent_});
  return RoomBeside(withheld) + (own != nullptr ? own->lingering : Bytes(0));
}

Bytes Pool::MostFor(PrincipalId principal, Bytes withheld) const {
  return RoomBeside(withheld) + FindOr(charged_, principal).lingering;
}

absl::Status Pool::Refusal(Bytes asked, Bytes withheld) const {
  std::string held;
  if (withheld > Bytes(0)) {
    held = fmt::format(", of which {} are reserved for others",
                       FormatBytes(std::min(withheld, free())));
  }
  if (lingering_ > Bytes(0)) {
    held += fmt::format(
        "; {} were freed, but stay with their user until the processes that "
        "mapped them end or let go",
        FormatBytes(lingering_));
  }
  if (quarantined_ > Bytes(0)) {
    held += fmt::format(
        "; {} belong to sessions that ended while their process lives",
        FormatBytes(quarantined_));
  }
  if (outside() > Bytes(0)) {
    held += "; " + OutsideText(outside(), outside_holders_);
  }
  return ShortOf(
      ShortageIn(id_.kind),
      fmt::format(
          "{}: asked {}, free {} of {}{}; free a lease, wait for one to end "
          "(sluicectl status), or give the pool more in [pools]",
          Name(id_), FormatBytes(asked), FormatBytes(free()),
          FormatBytes(total_), held));
}

std::vector<ExtentId> Pool::Reclaimable(
    Bytes need, const std::set<ExtentId>& spared) const {
  std::vector<ExtentId> found;
  if (need > kept_) return found;
  for (const auto& [order, id] : kept_by_age_) {
    if (need <= Bytes(0)) break;
    if (spared.contains(id)) continue;
    found.push_back(id);
    need -= SizeOf(id);
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

void Pool::Reuse(const ByAge& ids, int64_t n, bool scarce, Parts& parts) const {
  if (n == 0) return;
  std::vector<ExtentId> newest;
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    if (!scarce && std::ssize(newest) == n) break;
    newest.push_back(id->second);
  }
  if (scarce) {
    std::stable_partition(newest.begin(), newest.end(),
                          [&](ExtentId id) { return IsLingering(id); });
  }
  parts.reuse.insert(parts.reuse.end(), newest.begin(), newest.begin() + n);
}

Bytes Pool::TakenFromFree(const Parts& parts) const {
  Bytes taken = SizeOf(parts);
  for (ExtentId id : parts.reuse) {
    if (IsLingering(id)) taken -= SizeOf(id);
  }
  return taken;
}

Bytes Pool::SizeOf(const Parts& parts) const {
  Bytes size;
  for (const Bytes each : parts.make) size += each;
  for (ExtentId id : parts.reuse) size += SizeOf(id);
  return size;
}

std::optional<Pool::Parts> Pool::Regular(PrincipalId principal, Bytes size,
                                         Bytes room) const {
  // Counts idle extents of the right sizes.
  const int64_t whole = size / extent_;
  const Bytes tail = size - whole * extent_;
  Bytes left = size;
  const auto count = [&](Bytes each, int64_t wanted) {
    const Idle* idle = FindOrNull(idle_by_size_, {principal, each});
    const int64_t n = idle ? std::min(wanted, std::ssize(idle->by_age)) : 0;
    left -= each * n;
    return n;
  };
  const int64_t wholes = count(extent_, whole);
  const int64_t tails = count(tail, tail > Bytes(0) ? 1 : 0);
  if (left > room) return std::nullopt;
  Parts parts;
  const auto reuse = [&](Bytes each, int64_t n) {
    if (n == 0) return;
    Reuse(idle_by_size_.at({principal, each}).by_age, n, room < free(), parts);
  };
  reuse(extent_, wholes);
  reuse(tail, tails);
  if (!MakeRoom(left, parts)) return std::nullopt;
  return parts;
}

// Idle extents that a process may still map can be neither cut nor destroyed.
// Takes the largest ones that fit, and makes the rest or takes one more extent
// than needed.
std::optional<Pool::Parts> Pool::Patched(PrincipalId principal, Bytes size,
                                         Bytes most, Bytes room) const {
  Bytes left = size;
  std::optional<ExtentId> spare;  // the smallest one larger than the rest
  std::vector<std::pair<const ByAge*, int64_t>> picked;
  const auto begin = idle_by_size_.lower_bound({principal, Bytes(0)});
  auto kept = idle_by_size_.lower_bound({principal, extent_ + Bytes(1)});
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
  if (left > room && !spare) return std::nullopt;
  Parts parts;
  const bool scarce = room < free();
  for (const auto& [ids, n] : picked) Reuse(*ids, n, scarce, parts);
  const bool may_make = !scarce || left + TakenFromFree(parts) <= room;
  if (may_make && MakeRoom(left, parts)) return parts;
  if (!spare) return std::nullopt;
  parts.reuse.push_back(*spare);
  return parts;
}

absl::StatusOr<Pool::Parts> Pool::Choose(PrincipalId principal, Bytes size,
                                         Bytes most, Bytes withheld) const {
  SLUICE_CHECK(size > Bytes(0));
  const Bytes room = RoomBeside(withheld);
  if (size > MostFor(principal, withheld)) return Refusal(size, withheld);
  const auto fits = [&](const std::optional<Parts>& parts) {
    return parts && TakenFromFree(*parts) <= room;
  };
  std::optional<Parts> parts = Regular(principal, size, room);
  if (!fits(parts)) parts = Patched(principal, size, most, room);
  if (!fits(parts)) return Refusal(size, withheld);
  return *std::move(parts);
}

// --- Reading the pool

std::vector<ExtentId> Pool::OldestKept(size_t count,
                                       const std::set<ExtentId>& spared,
                                       std::optional<PrincipalId> of) const {
  std::vector<ExtentId> found;
  if (of && !kept_of_.contains(*of)) return found;
  for (const auto& [order, id] : of ? kept_of_.at(*of) : kept_by_age_) {
    if (found.size() >= count) break;
    if (!spared.contains(id)) found.push_back(id);
  }
  return found;
}

std::vector<ExtentId> Pool::KeptSince(absl::Time then, size_t count) const {
  std::vector<ExtentId> found;
  for (const auto& [order, id] : kept_by_age_) {
    if (found.size() >= count || extents_.at(id).kept_since > then) break;
    found.push_back(id);
  }
  return found;
}

absl::Time Pool::OldestSince() const {
  return kept_by_age_.empty()
             ? absl::InfiniteFuture()
             : extents_.at(kept_by_age_.begin()->second).kept_since;
}

// Compares sums and lists with those of a pool that reads the saved state.
void Pool::CheckInvariants() const {
  Pool read(id_, total_, extent_, outside_holders_);
  read.Load(Save());
  SLUICE_CHECK(read.owned_ == owned_ && read.charged_ == charged_);
  SLUICE_CHECK(read.idle_by_size_ == idle_by_size_ && read.held_ == held_);
  SLUICE_CHECK(read.kept_by_age_ == kept_by_age_ && read.kept_of_ == kept_of_);
  std::map<State, Bytes> sums;
  std::set<uint64_t> orders;
  for (const auto& [id, extent] : extents_) {
    SLUICE_CHECK(extent.size > Bytes(0) && extent.size <= extent_);
    sums[extent.state] += extent.size;
    const std::vector<SessionId>& holders = extent.holders;
    SLUICE_CHECK(std::set(holders.begin(), holders.end()).size() ==
                 holders.size());
    if (extent.state == State::kMaking || extent.state == State::kKept) {
      SLUICE_CHECK(holders.empty());
    }
    // With the same order, one idle extent would replace another in the lists.
    if (extent.state == State::kKept || extent.state == State::kLingering) {
      SLUICE_CHECK(orders.insert(extent.idle_order).second);
    }
    // Without its holder, the extent would never leave quarantine.
    SLUICE_CHECK(extent.state != State::kQuarantined ||
                 std::ranges::count(holders, extent.quarantined_for) == 1);
  }
  SLUICE_CHECK(sums[State::kMaking] == making_ &&
               sums[State::kMaking] + sums[State::kLeased] == leased_ &&
               sums[State::kQuarantined] == quarantined_ &&
               sums[State::kLingering] == lingering_ &&
               sums[State::kKept] == kept_);
  SLUICE_CHECK(unmade() >= Bytes(0) && outside() >= Bytes(0));
  SLUICE_CHECK(leased_ + lingering_ + quarantined_ + outside() + free() ==
               total_);
}

}  // namespace sluice::daemon
