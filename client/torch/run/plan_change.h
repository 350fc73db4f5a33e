// Which ranks take a new plan at a step boundary.
//
// The daemon of each node tells its ranks of a plan at slightly different
// moments. A node's ranks take it together, so all of them must have been
// told of the same one; every rank of the run decides that from what all of
// them said in the step's sum, so all decide alike.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/units.h"

namespace sluice::runtime {

// What a rank says: the plan it was told of last (0: none), and its node (any
// number that ranks of one node share).
struct PlanOffer {
  uint64_t plan = 0;
  int64_t node = 0;
};

// For each rank, whether its node takes the plan now.
std::vector<bool> WhoTakes(const std::vector<PlanOffer>& offers);

// What a rank's GPU lease must hold while it records with new fractions.
struct RecordingMemory {
  Bytes lease;
  Bytes used;       // weights, gradients, optimizer states, ids
  Bytes rings;      // of the new fractions
  Bytes kept;       // rows the recording keeps
  Bytes transient;  // of the plan before: what is needed now is not known yet
};

// ResourceExhausted: it does not fit, in one line.
absl::Status RoomToRecord(const RecordingMemory& memory);

// What became of one, for the report.
struct PlanChangeRecord {
  int64_t step = 0;  // the last one before it
  uint64_t plan = 0;
  bool taken = false;
  double alpha = 0;  // from then on
  std::string note;  // one line for people
};

}  // namespace sluice::runtime
