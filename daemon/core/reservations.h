// Memory of a pool that is reserved for a user: others' leases never take it.
//
// A reservation is of a principal, or of a uid (its cgroup is empty): then of
// every principal of that uid that has none of its own in that pool. What they
// hold there counts towards it first, and what is missing of it is withheld
// from all others.
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

// For snapshots: one of a pool.
struct ReservationLine {
  PoolId pool;
  Principal whose;
  Bytes bytes;
  Bytes withheld;  // the part that its user does not hold yet
  SetBy by;
};

// The principal of the reservation in `pool` that counts for this one: itself,
// or its uid.
inline Principal ReserverOf(const Reservations& from, PoolId pool,
                            const Principal& who) {
  const auto found = from.find(pool);
  const bool own = found != from.end() && found->second.contains(who);
  return own ? who : Principal{who.uid, ""};
}

// Sets it; nothing reserved: takes it out.
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
