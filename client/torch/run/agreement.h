// Decisions that the ranks of a run make together. Collective: all ranks make
// the same calls in the same order. Null `collectives`: one rank. An error
// means a lost peer (proto/base/peer_fault.h), except for Agree, which passes
// on errors of ranks.
//
// Thread safety: one thread.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"

namespace sluice::runtime {

// Returns whether `fine` is true on all ranks, which go on in either case.
absl::StatusOr<bool> AllAgree(Collectives* collectives, bool fine);
absl::StatusOr<bool> AnyRank(Collectives* collectives, bool own);

// Returns OK if `status` is OK on all ranks. Otherwise a failed rank gets its
// own status back, and the others get CausedByPeer. Call it as the first
// collective after work that may have failed on some ranks. Do not call it
// after a failure inside collectives: the ranks are out of step then, and the
// other ranks notice when a failed rank exits.
absl::Status Agree(Collectives* collectives, const absl::Status& status);

absl::StatusOr<double> LeastOfRanks(Collectives* collectives, double own);
// Returns the largest of each number over the ranks; infinity stays infinity.
absl::StatusOr<std::vector<double>> WorstOfRanks(Collectives* collectives,
                                                 std::vector<double> own);

}  // namespace sluice::runtime
