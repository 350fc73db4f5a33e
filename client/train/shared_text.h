// Shares text between ranks. Collective: all ranks make the same calls. An
// error means a lost peer.
// Thread safety: one thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"

namespace sluice::train {

// Returns rank `root`'s text, cut at 1,000 bytes. Null `collectives`: one rank.
absl::StatusOr<std::string> ShareText(runtime::Collectives* collectives,
                                      const std::string& text, int root);

// The fault of the first rank that failed, equal on all ranks.
struct SharedFault {
  absl::Status status;  // OK: no rank failed
};
absl::StatusOr<SharedFault> ShareFault(runtime::Collectives* collectives,
                                       const absl::Status& own);

}  // namespace sluice::train
