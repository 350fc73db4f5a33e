// What a lease that waits lacks, and whether waiting can help it.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/ledger.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::daemon {

absl::Status Ledger::MayEverFit(const JobKey& job,
                                const LeaseRequest& asked) const {
  SLUICE_RETURN_IF_ERROR(CheckAsked(asked));
  SLUICE_RETURN_IF_ERROR(budgets_.MayEver(job, asked.pool.kind, asked.size));
  const Pool& pool = pools_.at(asked.pool);
  Bytes others;
  if (const auto users = reservations_.find(asked.pool);
      users != reservations_.end()) {
    const Principal own = ReserverOf(reservations_, asked.pool, job.principal);
    for (const auto& [whose, each] : users->second) {
      if (whose != own) others += each.bytes;
    }
  }
  if (asked.size > pool.total() - others) {
    const std::string reserved =
        others > Bytes(0) ? fmt::format(", of which {} are reserved for others",
                                        FormatBytes(others))
                          : "";
    return ShortOf(ShortageIn(asked.pool.kind),
                   fmt::format("{}: asked {}, but the pool has {}{}, and no "
                               "wait changes that; ask for less, or give the "
                               "pool more in [pools]",
                               Name(asked.pool), FormatBytes(asked.size),
                               FormatBytes(pool.total()), reserved));
  }
  const size_t extents = pool.ExtentsOf(asked.size);
  if (extents > std::min(limits_.each, limits_.all)) {
    return TooMany(job.principal, 0, extents);
  }
  return absl::OkStatus();
}

std::optional<Waiter::Lacks> Ledger::Lacks(const JobKey& job,
                                           const LeaseRequest& asked,
                                           Bytes promised) const {
  const Pool& pool = pools_.at(asked.pool);
  const PoolKind kind = asked.pool.kind;
  const auto known = principals_.find(job.principal);
  const PrincipalId id =
      known != principals_.end() ? known->second.id : PrincipalId();
  // What lingers of its own is charged already, and leased again as it is.
  const Bytes withheld = Withheld(asked.pool, &job.principal);
  const Bytes own = pool.MostFor(id, pool.total());
  const Bytes charged_anew = asked.size - own;
  if (charged_anew > budgets_.LeftOfPrincipal(job.principal, kind)) {
    return Waiter::Lacks::kUser;
  }
  if (charged_anew > budgets_.LeftOfJob(job, kind)) return Waiter::Lacks::kJob;
  if (asked.size > pool.MostFor(id, withheld + promised)) {
    return Waiter::Lacks::kPool;
  }
  return std::nullopt;
}

Bytes Ledger::ReservedFor(PoolId pool, const Principal& whose) const {
  const auto users = reservations_.find(pool);
  if (users == reservations_.end()) return Bytes(0);
  const Principal reserver = ReserverOf(reservations_, pool, whose);
  const auto own = users->second.find(reserver);
  if (own == users->second.end()) return Bytes(0);
  return std::max(own->second.bytes - HeldBy(reservations_, pool, reserver),
                  Bytes(0));
}

}  // namespace sluice::daemon
