// Decides which ranks take a new plan at a step boundary.
//
// The daemon of each node sends a plan to its ranks at slightly different
// moments. A node's ranks take a plan together, only after all of them have
// received it. The step's sum over ranks carries the offers of all ranks. Every
// rank decides from these offers, so all decide alike.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/units.h"

namespace sluice::runtime {

// A rank's offer: the last plan that it received (0: none), and its node (a
// number that the ranks of one node share).
struct PlanOffer {
  uint64_t plan = 0;
  int64_t node = 0;
};

// Returns for each rank whether the rank's node takes its plan now.
std::vector<bool> WhoTakes(const std::vector<PlanOffer>& offers);

// What a rank's GPU lease must hold while it records with new fractions.
struct RecordingMemory {
  Bytes lease;
  Bytes used;       // weights, gradients, optimizer states, ids
  Bytes rings;      // of the new fractions
  Bytes kept;       // rows that the recording keeps
  Bytes transient;  // of the former plan; the new need is unknown
};

// Checks that the recording fits. ResourceExhausted: it does not, in one line.
absl::Status RoomToRecord(const RecordingMemory& memory);

// The outcome of a new plan, for the report.
struct PlanChangeRecord {
  int64_t step = 0;  // the last step before the change
  uint64_t plan = 0;
  bool taken = false;
  double alpha = 0;  // after the change
  std::string note;  // one line for the user
};

}  // namespace sluice::runtime
