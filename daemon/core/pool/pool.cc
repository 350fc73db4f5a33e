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

Pool::Extent& Pool::At(ExtentId id, State state) {
  Extent& extent = extents_.Edit(id);
  SLUICE_CHECK(extent.state == state);
  return extent;
}

const Pool::Account& Pool::AccountOf(PrincipalId principal) const {
  static const Account kNone;
  const Account* own = FindOrNull(accounts_, principal);
  return own != nullptr ? *own : kNone;
}

void Pool::List(ExtentId id, const Extent& extent, int sign) {
  const bool kept = extent.state == State::kKept;
  const bool lingers = extent.state == State::kLingering;
  const Bytes size = sign * extent.size;
  Account& own = accounts_[extent.principal];
  sums_[static_cast<size_t>(extent.state)] += size;
  if (!kept) own.charged += size;
  if (!kept && !lingers) return;
  const auto list = [&](ByAge& ages) {
    if (sign > 0) {
      ages[extent.idle_order] = id;
    } else {
      SLUICE_CHECK(ages.erase(extent.idle_order) == 1);
    }
  };
  Idle& idle = own.idle[extent.size];
  list(idle.by_age);
  if (kept) {
    list(kept_by_age_);
    list(own.kept);
  } else {
    own.lingering += size;
    idle.lingering += size;
  }
  if (idle.by_age.empty()) own.idle.erase(extent.size);
}

void Pool::Own(ExtentId id, const Extent& extent, int sign) {
  List(id, extent, sign);
  size_t& extents = accounts_[extent.principal].extents;
  extents += sign;
  if (extents == 0) accounts_.erase(extent.principal);
}

void Pool::Move(ExtentId id, Extent& extent, State to) {
  List(id, extent, -1);
  extent.state = to;
  if (to == State::kLingering || to == State::kKept) {
    extent.idle_order = next_idle_order_++;
  }
  List(id, extent, 1);
}

Pool::Taken Pool::Take(PrincipalId principal, const Parts& parts,
                       ExtentId first) {
  Taken taken;
  for (ExtentId id : parts.destroy) Destroy(id);
  for (ExtentId id : parts.reuse) {
    Extent& extent = extents_.Edit(id);
    Move(id, extent, State::kLeased);
    taken.slices.push_back({id, extent.size});
  }
  for (Bytes each : parts.make) {
    const ExtentId id(first.value() + taken.make.size());
    Own(id, extents_.Insert(id, {.size = each, .principal = principal}), 1);
    taken.make.push_back({id, each});
    taken.slices.push_back({id, each});
  }
  return taken;
}

void Pool::AddHolder(ExtentId id, SessionId by) {
  Extent& extent = At(id, State::kLeased);
  if (held_[by].insert(id).second) extent.holders.push_back(by);
}

bool Pool::Return(ExtentId id, absl::Time now) {
  Extent& extent = At(id, State::kLeased);
  const bool lingers = !extent.holders.empty();
  if (!lingers) extent.kept_since = now;
  Move(id, extent, lingers ? State::kLingering : State::kKept);
  return lingers;
}

void Pool::Back(ExtentId id, absl::Time now) {
  Extent& extent = At(id, State::kLingering);
  for (SessionId holder : std::exchange(extent.holders, {})) {
    const auto held = held_.find(holder);
    held->second.erase(id);
    if (held->second.empty()) held_.erase(held);
  }
  extent.kept_since = now;
  Move(id, extent, State::kKept);
}

void Pool::GiveTo(ExtentId id, PrincipalId heir) {
  Extent& extent = At(id, State::kKept);
  Own(id, extent, -1);
  extent.principal = heir;
  Own(id, extent, 1);
}

void Pool::TransferHolds(SessionId from, SessionId to) {
  const auto held = held_.extract(from);
  if (held.empty()) return;
  for (ExtentId id : held.mapped()) {
    Extent& extent = extents_.Edit(id);
    SLUICE_CHECK(extent.state != State::kQuarantined ||
                 extent.quarantined_for != from);
    if (held_[to].insert(id).second) extent.holders.push_back(to);
    std::erase(extent.holders, from);
  }
}

Pool::Left Pool::HolderGone(SessionId session) {
  Left left;
  const auto held = held_.extract(session);
  if (held.empty()) return left;
  for (ExtentId id : held.mapped()) {
    Extent& extent = extents_.Edit(id);
    std::erase(extent.holders, session);
    if (extent.state == State::kQuarantined &&
        extent.quarantined_for == session) {
      Move(id, extent, State::kLingering);
      left.unquarantined.push_back(id);
    } else if (extent.state == State::kLingering && extent.holders.empty()) {
      left.alone.push_back(id);
    }
  }
  return left;
}

void Pool::Load(const Saved& saved) {
  SLUICE_CHECK(extents_.empty());
  extents_.Load(saved.extents);
  next_idle_order_ = saved.next_idle_order;
  for (const auto& [id, extent] : extents_) {
    Own(id, extent, 1);
    for (SessionId holder : extent.holders) held_[holder].insert(id);
  }
}

// --- The parts of a lease: which idle extents, and what is made for it

absl::Status Pool::Refusal(Bytes asked, Bytes withheld) const {
  std::string held;
  if (withheld > Bytes(0)) {
    held = fmt::format(", of which {} are reserved for others",
                       FormatBytes(std::min(withheld, free())));
  }
  if (lingering() > Bytes(0)) {
    held += fmt::format(
        "; {} were freed, but stay with their user until the processes that "
        "mapped them end or let go",
        FormatBytes(lingering()));
  }
  if (quarantined() > Bytes(0)) {
    held += fmt::format(
        "; {} belong to sessions that ended while their process lives",
        FormatBytes(quarantined()));
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

bool Pool::MakeRoom(Bytes bytes, Parts& parts) const {
  if (bytes <= Bytes(0)) return true;
  if (Bytes need = bytes - unmade(); need > Bytes(0)) {
    if (need > kept()) return false;
    const std::set<ExtentId> spared(parts.reuse.begin(), parts.reuse.end());
    for (const auto& [order, id] : kept_by_age_) {
      if (need <= Bytes(0)) break;
      if (spared.contains(id)) continue;
      parts.destroy.push_back(id);
      need -= SizeOf(id);
    }
    if (need > Bytes(0)) return false;
  }
  for (; bytes > extent_; bytes -= extent_) parts.make.push_back(extent_);
  parts.make.push_back(bytes);
  return true;
}

Bytes Pool::SizeOf(const Parts& parts) const {
  Bytes size;
  for (const Bytes each : parts.make) size += each;
  for (ExtentId id : parts.reuse) size += SizeOf(id);
  return size;
}

std::optional<Pool::Parts> Pool::Assemble(const Picked& picked, Bytes left,
                                          Bytes room,
                                          std::optional<ExtentId> spare) const {
  if (left > room && !spare) return std::nullopt;
  const bool scarce = room < free();
  Parts parts;
  for (const auto& [ids, n] : picked) {
    // Takes the newest extents, because their pages are warm. If free memory is
    // withheld, lingering extents come first, because they take none of it.
    std::vector<ExtentId> newest;
    for (auto id = ids->rbegin(); id != ids->rend(); ++id) {
      if (!scarce && std::ssize(newest) == n) break;
      newest.push_back(id->second);
    }
    if (scarce) {
      std::stable_partition(newest.begin(), newest.end(),
                            [&](ExtentId id) { return IsLingering(id); });
    }
    parts.reuse.insert(parts.reuse.end(), newest.begin(), newest.begin() + n);
  }
  const bool may_make = !scarce || left + TakenFromFree(parts) <= room;
  if (may_make && MakeRoom(left, parts)) return parts;
  if (!spare) return std::nullopt;
  parts.destroy.clear();
  parts.reuse.push_back(*spare);
  return parts;
}

std::optional<Pool::Parts> Pool::Regular(const Account& own, Bytes size,
                                         Bytes room) const {
  const int64_t whole = size / extent_;
  const Bytes tail = size - whole * extent_;
  Bytes left = size;
  Picked picked;
  const auto pick = [&](Bytes each, int64_t wanted) {
    const Idle* idle = FindOrNull(own.idle, each);
    const int64_t n = idle ? std::min(wanted, std::ssize(idle->by_age)) : 0;
    if (n > 0) picked.emplace_back(&idle->by_age, n);
    left -= each * n;
  };
  pick(extent_, whole);
  pick(tail, 1);
  return Assemble(picked, left, room, std::nullopt);
}

// Takes the largest idle extents that fit. For the bytes that are left, makes
// extents, or takes a larger idle one. Idle extents are not cut, and lingering
// ones not destroyed, because a process may map them.
std::optional<Pool::Parts> Pool::Patched(const Account& own, Bytes size,
                                         Bytes most, Bytes room) const {
  Bytes left = size;
  std::optional<ExtentId> spare;  // the smallest one larger than `left`
  Picked picked;
  const auto begin = own.idle.begin();
  for (auto idle = own.idle.upper_bound(extent_); idle != begin;) {
    const auto& [each, of] = *--idle;
    const int64_t n = std::min(left / each, std::ssize(of.by_age));
    if (n > 0) picked.emplace_back(&of.by_age, n);
    if (n < std::ssize(of.by_age)) spare = of.by_age.begin()->second;
    left -= each * n;
  }
  if (spare && size - left + SizeOf(*spare) > most) spare.reset();
  return Assemble(picked, left, room, spare);
}

absl::StatusOr<Pool::Parts> Pool::Choose(PrincipalId principal, Bytes size,
                                         Bytes most, Bytes withheld) const {
  SLUICE_CHECK(size > Bytes(0));
  const Bytes room = RoomBeside(withheld);
  if (size > MostFor(principal, withheld)) return Refusal(size, withheld);
  const auto fits = [&](const std::optional<Parts>& parts) {
    return parts && TakenFromFree(*parts) <= room;
  };
  const Account& own = AccountOf(principal);
  std::optional<Parts> parts = Regular(own, size, room);
  if (!fits(parts)) parts = Patched(own, size, most, room);
  if (!fits(parts)) return Refusal(size, withheld);
  return *std::move(parts);
}

// --- Reading the pool

std::vector<ExtentId> Pool::OldestKept(size_t count,
                                       const std::set<ExtentId>& spared,
                                       std::optional<PrincipalId> of) const {
  std::vector<ExtentId> found;
  for (const auto& [order, id] : of ? AccountOf(*of).kept : kept_by_age_) {
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

// Compares sums and lists with those of a pool that reads the saved state.
void Pool::CheckInvariants() const {
  Pool read(id_, total_, extent_, outside_holders_);
  read.Load(Save());
  SLUICE_CHECK(read.sums_ == sums_ && read.accounts_ == accounts_);
  SLUICE_CHECK(read.held_ == held_ && read.kept_by_age_ == kept_by_age_);
  std::set<uint64_t> orders;
  for (const auto& [id, extent] : extents_) {
    SLUICE_CHECK(extent.size > Bytes(0) && extent.size <= extent_);
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
  SLUICE_CHECK(unmade() >= Bytes(0) && outside() >= Bytes(0));
}

}  // namespace sluice::daemon
