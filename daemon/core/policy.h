// What administrators decided while the daemon ran: kept, so that a restart
// takes none of it back.
//
// Plain data. Thread safety: values.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "daemon/core/budget.h"
#include "daemon/core/measured_links.h"
#include "daemon/core/reservations.h"

namespace sluice::daemon {

// The node grants nothing new: no session of a rank, no lease.
struct Drain {
  std::string who;     // as the caller said it; empty: it did not
  std::string reason;  // may be empty
  absl::Time at;       // monotonic
  bool operator==(const Drain&) const = default;
};

struct Policy {
  Budgets::Saved limits;  // those that were set live
  Reservations reservations;
  std::optional<Drain> drain;
  std::optional<MeasuredLinks> measured;
  bool operator==(const Policy&) const = default;
};

// One change that an administrator asks for. The name is as in SetBy.
struct BudgetChange {
  BudgetTarget target;
  std::optional<Bytes> gpu, host;  // a limit that is not given stays
  std::string who;
};
// `bytes` of a pool are reserved for a user (cgroup empty: for all its
// cgroups); 0 ends the reservation.
struct ReservationChange {
  PoolId pool;
  Principal whose;
  Bytes bytes;
  std::string who;
};
// nullopt ends the drain.
struct DrainChange {
  std::optional<Drain> drain;
};
// nullopt forgets what was measured.
struct LinksChange {
  std::optional<MeasuredLinks> measured;
};
using PolicyChange =
    std::variant<BudgetChange, ReservationChange, DrainChange, LinksChange>;

}  // namespace sluice::daemon
