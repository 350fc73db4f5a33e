// Whether a measurement backs the model's estimate: which published table has
// this method on this machine.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "planner/train/settings.h"

namespace sluice::planner::train {

// The profile of the machine that MEMO's tables were measured on.
inline constexpr const char* kMemoHardware = "a800-80g";

// The table that figures of a method on a machine were judged on, as one would
// cite it; empty: none, "not validated".
struct Evidence {
  std::string speed;   // MFU, tokens/s, step seconds
  std::string memory;  // what fits, the longest sequence
};

// Follows from the shipped tables and from the profile that they were measured
// on: a changed copy of it is another machine.
Evidence EvidenceOf(const Request& request);

}  // namespace sluice::planner::train
