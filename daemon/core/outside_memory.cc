#include "daemon/core/outside_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "proto/base/find.h"
#include "proto/base/simulated.h"

namespace sluice::daemon {

Bytes OutsideMemory::Set(HeldOutside held, absl::Time now) {
  const Principal own{config_.own_uid, ""};
  for (const auto& [id, pool] : ledger_.pools()) {
    const bool before = ledger_.OutsideIn(id, ledger_.outside()) > Bytes(0);
    const Bytes after = ledger_.OutsideIn(id, held);
    if (before == (after > Bytes(0))) continue;
    journal_.Log(
        now, before ? EventKind::kDeath : EventKind::kStart,
        before
            ? Name(id) + ": nothing is held outside leases any more"
            : fmt::format("{}: of {}, {}", Name(id), FormatBytes(pool.total()),
                          OutsideText(after, OutsideHolders(config_.driver))),
        own);
  }
  return ledger_.SetOutside(std::move(held));
}

Bytes OutsideMemory::Known(HeldOutside said, absl::Time now) {
  std::set<PoolId> with_ranks;
  for (const auto& [id, session] : sessions_) {
    if (session.was_rank()) with_ranks.insert(session.gpu());
  }
  const Bytes came_back =
      Set(Follow(ledger_.outside(), std::move(said), with_ranks), now);
  // Ranks report only increases of their use; the device reports decreases.
  const HeldOutside& held = ledger_.outside();
  for (const auto& [id, session] : sessions_) {
    const PoolId gpu = session.gpu();
    const Bytes* beside = FindOrNull(held.beside, gpu);
    if (!session.outside || !beside || held.told.contains(gpu)) continue;
    const auto most = OfRanks(held, gpu, *beside);
    if (most && *most < *session.outside) sessions_.Edit(id).outside = *most;
  }
  return came_back;
}

void OutsideMemory::Told(Session& session, const GpuUseRequest& use,
                         absl::Time now) {
  if (IsSimulated(config_.driver)) return;
  const PoolId gpu = session.gpu();
  const Pool& pool = *ledger_.FindPool(gpu);
  const Bytes most = pool.total() + config_.gpus[gpu.ordinal].spare;
  const Bytes beside =
      std::max(std::min(use.used, most) - pool.made(), Bytes(0));
  HeldOutside held = ledger_.outside();
  held.told[gpu] = {beside, now};
  if (const auto all = OfRanks(held, gpu, beside)) {
    Bytes others;
    for (const auto& [id, other] : sessions_) {
      if (other.was_rank() && id != session.id && other.gpu() == gpu) {
        others += other.outside.value_or(Bytes(0));
      }
    }
    session.outside = std::max(*all - others, Bytes(0));
  }
  Set(std::move(held), now);
}

}  // namespace sluice::daemon
