// What administrators decide while the daemon runs, and what is saved of it.
// Plain data.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "daemon/core/budget.h"
#include "daemon/core/measured_links.h"
#include "daemon/core/reservations.h"

namespace sluice::daemon {

// While it is set, the node accepts no session of a rank and grants no lease.
struct Drain {
  std::string who;     // the name that the caller gave; may be empty
  std::string reason;  // may be empty
  absl::Time at;       // monotonic
  bool operator==(const Drain&) const = default;
};

struct Policy {
  Budgets::Saved limits;  // limits that an administrator has set
  Reservations reservations;
  std::optional<Drain> drain;
  std::optional<MeasuredLinks> measured;
  bool operator==(const Policy&) const = default;
};

// Changes that an administrator asks for, named as in SetBy.
struct BudgetChange {
  BudgetTarget target;
  std::optional<Bytes> gpu, host;  // unset: the limit stays
  std::string who;
};
// Reserves `bytes` of a pool for a user, or ends the reservation if 0. With an
// empty cgroup, the reservation is for all cgroups of the user.
struct ReservationChange {
  PoolId pool;
  Principal whose;
  Bytes bytes;
  std::string who;
};
struct DrainChange {
  std::optional<Drain> drain;  // nullopt ends the drain
};
struct LinksChange {
  std::optional<MeasuredLinks> measured;  // nullopt drops the measurement
};
using PolicyChange =
    std::variant<BudgetChange, ReservationChange, DrainChange, LinksChange>;

}  // namespace sluice::daemon
