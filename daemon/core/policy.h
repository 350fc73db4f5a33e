// Decisions of administrators while the daemon runs. They are saved, so that
// they survive a restart.
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

// While set, the node grants nothing new: no session of a rank, no lease.
struct Drain {
  std::string who;     // the name that the caller gave; may be empty
  std::string reason;  // may be empty
  absl::Time at;       // monotonic
  bool operator==(const Drain&) const = default;
};

struct Policy {
  Budgets::Saved limits;  // set while a daemon ran
  Reservations reservations;
  std::optional<Drain> drain;
  std::optional<MeasuredLinks> measured;
  bool operator==(const Policy&) const = default;
};

// A change that an administrator asks for, named as in SetBy.
struct BudgetChange {
  BudgetTarget target;
  std::optional<Bytes> gpu, host;  // unset: the limit stays
  std::string who;
};
// Reserves `bytes` of a pool for a user (cgroup empty: for all its cgroups); 0
// ends the reservation.
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
// nullopt drops the measurement.
struct LinksChange {
  std::optional<MeasuredLinks> measured;
};
using PolicyChange =
    std::variant<BudgetChange, ReservationChange, DrainChange, LinksChange>;

}  // namespace sluice::daemon
