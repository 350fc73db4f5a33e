// What a rank needs of a link, again and again, and the rate that is enough.
//
// A demand is `bytes` in one direction, due `deadline` after they are asked
// for, at most once per `period`: a rank's copies of one step, or of one chunk.
// In real-time terms it is a sporadic task with a constrained deadline.
//
// The demand bound function says how many bytes can both be asked for and be
// due inside any span of length t. A link that carries, in every such span, at
// least the sum of its demands' bounds meets every deadline under earliest
// deadline first, and no order does where it carries less: the processor
// demand criterion (Baruah, Mok and Rosier 1990, "Preemptively scheduling
// hard-real-time sporadic tasks on one processor").
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/base/units.h"

namespace sluice::daemon::bandwidth {

struct Demand {
  Bytes bytes;
  absl::Duration deadline;  // at most the period
  absl::Duration period;
};

// InvalidArgument: nothing asked for, or 0 < deadline <= period does not hold.
absl::Status CheckDemand(const Demand& demand);

// Bytes that `demand` can ask for and have due inside a span of length `span`.
double DemandBound(const Demand& demand, absl::Duration span);

// The least constant rate, in bytes per second, at which all deadlines are met
// under earliest deadline first: the maximum over all t of the summed bounds
// divided by t. Rather too much than too little, by at most kRateSlack, or
// where thousands of deadlines would have to be looked at.
inline constexpr double kRateSlack = 1e-3;
double LeastRate(const std::vector<Demand>& demands);

}  // namespace sluice::daemon::bandwidth
