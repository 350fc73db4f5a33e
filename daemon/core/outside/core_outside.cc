// What is held outside leases: what the device says, and what ranks tell.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/core/core.h"
#include "proto/base/simulated.h"

namespace sluice::daemon {
namespace {

PoolId PoolOf(const Session& session) {
  return {PoolKind::kGpu, session.hello.gpu.value()};
}

}  // namespace

void Core::LogOutside(const HeldOutside& held, absl::Time now) {
  const Principal own{config_.own_uid, ""};
  for (const auto& [id, pool] : ledger_.pools()) {
    const Bytes before = ledger_.OutsideIn(id, ledger_.outside());
    const Bytes after = ledger_.OutsideIn(id, held);
    if (before == Bytes(0) && after > Bytes(0)) {
      Log(now, EventKind::kStart,
          fmt::format("{}: of {}, {}", Name(id), FormatBytes(pool.total()),
                      OutsideText(after, OutsideHolders(config_.driver))),
          own);
    } else if (before > Bytes(0) && after == Bytes(0)) {
      Log(now, EventKind::kDeath,
          fmt::format("{}: nothing is held outside leases any more", Name(id)),
          own);
    }
  }
}

std::set<PoolId> Core::GpusWithRanks() const {
  std::set<PoolId> gpus;
  for (const auto& [id, session] : sessions_) {
    if (session.was_rank()) gpus.insert(PoolOf(session));
  }
  return gpus;
}

Bytes Core::OutsideOfOthers(const Session& session) const {
  Bytes sum;
  for (const auto& [id, other] : sessions_) {
    if (other.was_rank() && id != session.id &&
        PoolOf(other) == PoolOf(session)) {
      sum += other.outside.value_or(Bytes(0));
    }
  }
  return sum;
}

// A rank tells when it takes more; that it has less the device alone says.
void Core::LowerShares() {
  const HeldOutside& held = ledger_.outside();
  for (const auto& [id, session] : sessions_) {
    const PoolId gpu = PoolOf(session);
    const auto beside = held.beside.find(gpu);
    if (!session.outside || beside == held.beside.end() ||
        held.told.contains(gpu)) {
      continue;
    }
    const auto most = OfRanks(held, gpu, beside->second);
    if (most && *most < *session.outside) sessions_.Edit(id).outside = *most;
  }
}

Effects Core::OutsideKnown(HeldOutside said, absl::Time now) {
  HeldOutside held =
      Follow(ledger_.outside(), std::move(said), GpusWithRanks());
  LogOutside(held, now);
  const Bytes came_back = ledger_.SetOutside(std::move(held));
  LowerShares();
  Effects effects;
  if (came_back > Bytes(0)) joint_.MemoryCameBack(now);
  Settle(now, effects);
  return effects;
}

void Core::Handle(Session& session, RequestId request, const GpuUseRequest& use,
                  absl::Time now, Effects& effects) {
  if (!session.is_rank()) {
    return Answer(session, request,
                  absl::FailedPreconditionError(
                      "an observer's session has no GPU: attach as a rank"),
                  effects);
  }
  const PoolId gpu = PoolOf(session);
  if (!IsSimulated(config_.driver)) {
    const Pool& pool = *ledger_.FindPool(gpu);
    const Bytes most =
        pool.total() + config_.gpus[session.hello.gpu.value()].spare;
    const Bytes beside =
        std::max(std::min(use.used, most) - pool.made(), Bytes(0));
    HeldOutside held = ledger_.outside();
    held.told[gpu] = {beside, now};
    if (const auto all = OfRanks(held, gpu, beside)) {
      session.outside = std::max(*all - OutsideOfOthers(session), Bytes(0));
    }
    LogOutside(held, now);
    ledger_.SetOutside(std::move(held));
  }
  Answer(session, request, NotedReply{.room = gpu}, effects);
}

}  // namespace sluice::daemon
