// What the ranks of a run decide together.
//
// Collective: all ranks call the same of these in the same order.
// `collectives` null: one rank, which agrees with itself. An error is a lost
// peer (proto/base/peer_fault.h), but for Agree.
// Thread safety: one thread.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"

namespace sluice::runtime {

// Where every rank goes on after a refusal: whether all ranks are fine.
absl::StatusOr<bool> AllAgree(Collectives* collectives, bool fine);
absl::StatusOr<bool> AnyRank(Collectives* collectives, bool own);

// All ranks learn whether every one of them is fine: the first collective
// after work that only some may have failed. A failed rank gets its own
// status back, the others CausedByPeer. Not after a failure inside
// collectives: then the ranks are out of step, and leaving is the message.
absl::Status Agree(Collectives* collectives, const absl::Status& status);

absl::StatusOr<double> LeastOfRanks(Collectives* collectives, double own);
// The largest of each; infinity is one.
absl::StatusOr<std::vector<double>> WorstOfRanks(Collectives* collectives,
                                                 std::vector<double> own);

}  // namespace sluice::runtime
