// Decides which ranks take a new plan at a step boundary.
//
// The daemon of each node tells its ranks of a plan at slightly different
// moments. A node's ranks take a plan together, so all of them must have been
// told of the same one. Every rank of the run decides this from what all ranks
// offered in the step's sum, so all decide alike.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/units.h"

namespace sluice::runtime {

// A rank's offer: the last plan that it was told of (0: none), and its node (a
// number that the ranks of one node share).
struct PlanOffer {
  uint64_t plan = 0;
  int64_t node = 0;
};

// Returns for each rank whether its node takes the plan now.
std::vector<bool> WhoTakes(const std::vector<PlanOffer>& offers);

// What a rank's GPU lease must hold while it records with new fractions.
struct RecordingMemory {
  Bytes lease;
  Bytes used;       // weights, gradients, optimizer states, ids
  Bytes rings;      // of the new fractions
  Bytes kept;       // rows that the recording keeps
  Bytes transient;  // of the plan before; the new need is unknown
};

// ResourceExhausted: the recording does not fit, in one line.
absl::Status RoomToRecord(const RecordingMemory& memory);

// The outcome of a new plan, for the report.
struct PlanChangeRecord {
  int64_t step = 0;  // the last one before the change
  uint64_t plan = 0;
  bool taken = false;
  double alpha = 0;  // after the change
  std::string note;  // one line for the user
};

}  // namespace sluice::runtime
