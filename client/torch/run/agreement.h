// Decisions that the ranks of a run make together.
//
// Collective: all ranks make the same calls in the same order. `collectives`
// null: one rank, which agrees with itself. An error is a lost peer
// (proto/base/peer_fault.h), except for Agree's.
// Thread safety: one thread.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"

namespace sluice::runtime {

// Returns whether all ranks are fine; they all go on after a refusal.
absl::StatusOr<bool> AllAgree(Collectives* collectives, bool fine);
absl::StatusOr<bool> AnyRank(Collectives* collectives, bool own);

// Tells all ranks whether every one of them is fine: the first collective after
// work that may have failed on some. A failed rank gets its own status back,
// the others CausedByPeer. Do not call it after a failure inside collectives:
// the ranks are out of step then, and a rank's exit tells the others.
absl::Status Agree(Collectives* collectives, const absl::Status& status);

absl::StatusOr<double> LeastOfRanks(Collectives* collectives, double own);
// Returns the largest of each number over the ranks; infinity stays infinity.
absl::StatusOr<std::vector<double>> WorstOfRanks(Collectives* collectives,
                                                 std::vector<double> own);

}  // namespace sluice::runtime
