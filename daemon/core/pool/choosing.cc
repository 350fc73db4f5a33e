// What a lease is made of: which idle extents, and what is made for it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/core/pool/pool.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::daemon {

Bytes Pool::UsableBy(PrincipalId principal, Bytes withheld) const {
  const auto own = idle_by_size_.find({principal, extent_});
  return RoomBeside(withheld) +
         (own != idle_by_size_.end() ? own->second.lingering : Bytes(0));
}

Bytes Pool::MostFor(PrincipalId principal, Bytes withheld) const {
  const auto charged = charged_.find(principal);
  const Bytes own =
      charged != charged_.end() ? charged->second.lingering : Bytes(0);
  return RoomBeside(withheld) + own;
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
  Bytes taken;
  for (const Bytes each : parts.make) taken += each;
  for (ExtentId id : parts.reuse) {
    if (!IsLingering(id)) taken += SizeOf(id);
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
  // Which kept extents serve.
  const int64_t whole = size / extent_;
  const Bytes tail = size - whole * extent_;
  Bytes left = size;
  const auto count = [&](Bytes each, int64_t wanted) {
    const auto kept = idle_by_size_.find({principal, each});
    if (kept == idle_by_size_.end()) return int64_t{0};
    const int64_t n = std::min(wanted, std::ssize(kept->second.by_age));
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

// A process that gave extents back may still map them, so they can be neither
// cut nor destroyed: the largest that fit, and the rest made, or one more than
// is needed.
std::optional<Pool::Parts> Pool::Patched(PrincipalId principal, Bytes size,
                                         Bytes most, Bytes room) const {
  Bytes left = size;
  std::optional<ExtentId> spare;  // the smallest that is too large
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

}  // namespace sluice::daemon
