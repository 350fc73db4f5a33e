// What is reserved, and withheld from whom.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/ledger.h"
#include "proto/base/status.h"

namespace sluice::daemon {

Bytes Ledger::HeldBy(const Reservations& reserved, PoolId pool,
                     const Principal& reserver) const {
  Bytes held;
  for (auto each = principals_.lower_bound({reserver.uid, ""});
       each != principals_.end() && each->first.uid == reserver.uid; ++each) {
    if (ReserverOf(reserved, pool, each->first) != reserver) continue;
    held += pools_.at(pool).ChargedTo(each->second.id);
  }
  return held;
}

Bytes Ledger::Withheld(const Reservations& reserved, PoolId pool,
                       const Principal* from) const {
  const auto found = reserved.find(pool);
  if (found == reserved.end()) return Bytes(0);
  std::optional<Principal> own;
  if (from != nullptr) own = ReserverOf(reserved, pool, *from);
  Bytes sum;
  for (const auto& [whose, each] : found->second) {
    if (whose == own) continue;
    sum += std::max(each.bytes - HeldBy(reserved, pool, whose), Bytes(0));
  }
  return sum;
}

absl::Status Ledger::MayReserve(PoolId id, const Principal& whose, Bytes bytes,
                                Bytes promised) const {
  SLUICE_RETURN_IF_ERROR(CheckPool(id));
  if (bytes < Bytes(0) || bytes.count() % granularity_.count() != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "a reservation of {} bytes is not a multiple of the granularity, {}",
        bytes.count(), FormatBytes(granularity_)));
  }
  const Pool& pool = pools_.at(id);
  Reservations tried = reservations_;
  SetReservation(tried, id, whose, {bytes, {}});
  const Bytes withheld = Withheld(tried, id, nullptr);
  // Less than before breaks nothing, whatever has become of it since.
  if (withheld <= Withheld(reservations_, id, nullptr)) return absl::OkStatus();
  const Bytes room = pool.free() - promised;
  if (withheld <= room) return absl::OkStatus();
  const std::string plans =
      promised > Bytes(0)
          ? fmt::format(", {} of it promised to plans of running jobs",
                        FormatBytes(promised))
          : "";
  return absl::FailedPreconditionError(fmt::format(
      "{}: {} cannot be reserved for {}: with what others have reserved {} "
      "would have to be free, and {} of {} are{}; reserve less, or wait until "
      "memory is given back (sluicectl evict ends a job)",
      Name(id), FormatBytes(bytes), Name(whose), FormatBytes(withheld),
      FormatBytes(pool.free()), FormatBytes(pool.total()), plans));
}

absl::Status Ledger::CheckSums(const Reservations& given) const {
  for (const auto& [id, users] : given) {
    Bytes sum;
    for (const auto& [whose, each] : users) sum += each.bytes;
    const Pool* pool = FindPool(id);
    if (pool != nullptr && sum <= pool->total()) continue;
    return absl::InvalidArgumentError(fmt::format(
        "the policy reserves {} of {}, {}: take it out of its file, or give "
        "the pool more in [pools]",
        FormatBytes(sum), Name(id),
        pool != nullptr ? "which has " + FormatBytes(pool->total())
                        : "which is not here"));
  }
  return absl::OkStatus();
}

std::vector<ReservationLine> Ledger::ReservationLines() const {
  std::vector<ReservationLine> lines;
  for (const auto& [pool, users] : reservations_) {
    for (const auto& [whose, each] : users) {
      const Bytes held = HeldBy(reservations_, pool, whose);
      lines.push_back({pool, whose, each.bytes,
                       std::max(each.bytes - held, Bytes(0)), each.by});
    }
  }
  return lines;
}

// What is missing of all reservations of a pool is there: no other principal
// was given any of it.
void Ledger::CheckReservations() const {
  for (const auto& [id, users] : reservations_) {
    SLUICE_CHECK(!users.empty());
    for (const auto& [whose, each] : users) SLUICE_CHECK(each.bytes > Bytes(0));
    const Pool& pool = pools_.at(id);
    SLUICE_CHECK(Withheld(id, nullptr) <= pool.total() - pool.leased() -
                                              pool.quarantined() -
                                              pool.lingering());
  }
}

}  // namespace sluice::daemon
