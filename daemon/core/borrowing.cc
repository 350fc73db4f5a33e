#include "daemon/core/borrowing.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/shortage.h"

namespace sluice::daemon {

Bytes Borrowable(const NodeConfig& config, const SessionTable& sessions,
                 const Ledger& ledger, const Session& rank, PoolId pool) {
  int attached = 0;
  for (const auto& [id, other] : sessions) {
    if (!other.is_rank()) continue;
    const GpuConfig& gpu = config.gpus[other.hello.gpu.value()];
    if (other.job() != rank.job() || gpu.numa.value() == pool.ordinal) {
      return Bytes(0);
    }
    ++attached;
  }
  if (attached < rank.hello.local_ranks) return Bytes(0);
  return std::max(ledger.UsableBy(pool, rank.peer.principal) -
                      ledger.pools().at(pool).total() / 2,
                  Bytes(0));
}

absl::Status CheckBorrowing(const NodeConfig& config,
                            const SessionTable& sessions, const Ledger& ledger,
                            const Session& session, const LeaseRequest& asked) {
  if (!session.is_rank() || asked.pool.kind != PoolKind::kHost ||
      ledger.FindPool(asked.pool) == nullptr) {
    return absl::OkStatus();
  }
  const NumaIndex own = config.gpus[session.hello.gpu.value()].numa;
  if (asked.pool.ordinal == own.value()) return absl::OkStatus();
  const Bytes most = Borrowable(config, sessions, ledger, session, asked.pool);
  if (asked.size <= most) return absl::OkStatus();
  return ShortOf(
      Shortage::kHostMemory,
      fmt::format("{}: asked {}, and a rank on NUMA node {} may lease {} there "
                  "now: a job alone on the machine has half of each node "
                  "without ranks",
                  Name(asked.pool), FormatBytes(asked.size), own.value(),
                  FormatBytes(most)));
}

}  // namespace sluice::daemon
