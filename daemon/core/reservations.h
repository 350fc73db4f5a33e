// Memory of a pool that is reserved for a user. A reservation is for a
// principal, or with an empty cgroup for every principal of that uid without
// its own reservation in that pool. The memory that these principals hold in
// the pool counts towards the reservation; the rest is withheld from all
// others. Values; pure functions.
#pragma once

#include <map>
#include <utility>

#include "daemon/core/budget.h"
#include "daemon/core/node/types.h"
#include "proto/base/find.h"

namespace sluice::daemon {

struct Reservation {
  Bytes bytes;
  SetBy by;
  bool operator==(const Reservation&) const = default;
};

using Reservations = std::map<PoolId, std::map<Principal, Reservation>>;

// One reservation of one pool, for snapshots.
struct ReservationLine {
  PoolId pool;
  Principal whose;
  Bytes bytes;
  Bytes withheld;  // the part that its user does not hold yet
  SetBy by;
};

// Returns the principal of the reservation in `pool` that applies to a
// principal: either the principal itself, or its uid.
inline Principal ReserverOf(const Reservations& from, PoolId pool,
                            const Principal& who) {
  const auto* users = FindOrNull(from, pool);
  return users && users->contains(who) ? who : Principal{who.uid, ""};
}

// Sets the reservation; removes it if it reserves nothing.
inline void SetReservation(Reservations& of, PoolId pool,
                           const Principal& whose, Reservation given) {
  if (given.bytes > Bytes(0)) {
    of[pool][whose] = std::move(given);
    return;
  }
  of[pool].erase(whose);
  if (of[pool].empty()) of.erase(pool);
}

}  // namespace sluice::daemon
