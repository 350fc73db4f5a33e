// Text that all ranks have alike.
//
// Collective: every rank of the run calls the same of these in the same order.
// A Status they return (inside StatusOr: that of the StatusOr) is a lost peer.
// Thread safety: one thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"

namespace sluice::train {

// Rank `root`'s text, cut at 1,000 bytes. `collectives` may be null: one rank.
absl::StatusOr<std::string> ShareText(runtime::Collectives* collectives,
                                      const std::string& text, int root);

// What was wrong with the first rank that failed, on all ranks alike.
struct SharedFault {
  absl::Status status;  // OK: all are fine
};
absl::StatusOr<SharedFault> ShareFault(runtime::Collectives* collectives,
                                       const absl::Status& own);

}  // namespace sluice::train
