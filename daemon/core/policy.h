// What administrators decide while the daemon runs, and what is saved of it.
// Plain data and pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/budget.h"
#include "daemon/core/node/types.h"
#include "proto/base/find.h"

namespace sluice::daemon {

// While it is set, the node admits no rank and grants no lease.
struct Drain {
  std::string who;     // the name that the caller gave; may be empty
  std::string reason;  // may be empty
  absl::Time at;       // monotonic
  bool operator==(const Drain&) const = default;
};

// Memory of a pool that is reserved for a principal, or with an empty cgroup
// for every principal of that uid without its own reservation in that pool. The
// memory that these principals hold in the pool counts towards the reservation;
// the rest of the reservation is withheld from all other principals.
struct Reservation {
  Bytes bytes;
  SetBy by;
  bool operator==(const Reservation&) const = default;
};

using Reservations = std::map<PoolId, std::map<Principal, Reservation>>;

// Bytes per second; 0: the measurement found no limit.
struct MeasuredLink {
  double h2d = 0;
  double d2h = 0;
  double both = 0;  // sum of both directions when both are in use
  bool operator==(const MeasuredLink&) const = default;
};

// Measured speeds of links. A link with a configured speed keeps that speed.
// For all other links, a measurement is used as a whole or not at all.
struct MeasuredLinks {
  std::map<std::string, MeasuredLink> links;  // by name; not empty
  SetBy by;
  bool operator==(const MeasuredLinks&) const = default;
};

struct Policy {
  Budgets::Saved limits;  // limits that an administrator has set
  Reservations reservations;
  std::optional<Drain> drain;
  std::optional<MeasuredLinks> measured;
  bool operator==(const Policy&) const = default;
};

// --- changes that an administrator, named as in SetBy, asks for
struct BudgetChange {
  BudgetTarget target;
  std::optional<Bytes> gpu, host;  // unset: the limit stays
  std::string who;
};
// Reserves `bytes` of a pool, as in Reservation; 0 ends the reservation.
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

// One reservation of one pool, for snapshots.
struct ReservationLine {
  PoolId pool;
  Principal whose;
  Bytes bytes;
  Bytes withheld;  // the part that its user does not hold yet
  SetBy by;
};

// Returns the principal of the reservation in `pool` that applies to a
// principal: either the principal itself, or its uid with an empty cgroup.
inline Principal ReserverOf(const Reservations& from, PoolId pool,
                            const Principal& who) {
  const auto* users = FindOrNull(from, pool);
  return users && users->contains(who) ? who : Principal{who.uid, ""};
}

inline void SetReservation(Reservations& of, PoolId pool,
                           const Principal& whose, Reservation given) {
  if (given.bytes > Bytes(0)) {
    of[pool][whose] = std::move(given);
    return;
  }
  of[pool].erase(whose);
  if (of[pool].empty()) of.erase(pool);
}

// Checks a measurement for a node with the links `configured`. InvalidArgument:
// it is empty, names a link that the node does not have, or has an invalid
// speed. FailedPrecondition: bandwidth::Topology::Make refuses it together with
// the configured speeds of other links.
absl::Status CheckMeasured(const std::vector<LinkSpeed>& configured,
                           const MeasuredLinks& measured);

// Returns the links that grants and plans use if CheckMeasured is OK.
std::vector<LinkSpeed> LinksWith(const std::vector<LinkSpeed>& configured,
                                 const MeasuredLinks& measured);

}  // namespace sluice::daemon
