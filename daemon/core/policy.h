// What administrators decided while the daemon ran: kept, so that a restart
// takes none of it back.
//
// Plain data. Thread safety: values.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "daemon/core/budget.h"
#include "daemon/core/measured/measured_links.h"
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

}  // namespace sluice::daemon
