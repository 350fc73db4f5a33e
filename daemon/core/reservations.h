// Memory of a pool that is reserved for a user. Leases of other users never
// take it.
//
// A reservation is for a principal, or for a uid (with an empty cgroup). In the
// latter case it is for every principal of that uid without its own reservation
// in that pool. The memory that these principals hold in the pool counts
// towards the reservation, and the rest of the reservation is withheld from all
// others.
//
// Thread safety: values; pure.
#pragma once

#include <map>
#include <utility>

#include "daemon/core/budget.h"
#include "daemon/core/node/types.h"

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
  const auto found = from.find(pool);
  const bool own = found != from.end() && found->second.contains(who);
  return own ? who : Principal{who.uid, ""};
}

// Sets the reservation; removes it if it reserves nothing.
inline void SetReservation(Reservations& of, PoolId pool,
                           const Principal& whose, Reservation given) {
  if (given.bytes > Bytes(0)) {
    of[pool][whose] = std::move(given);
    return;
  }
  const auto found = of.find(pool);
  if (found == of.end()) return;
  found->second.erase(whose);
  if (found->second.empty()) of.erase(found);
}

}  // namespace sluice::daemon
