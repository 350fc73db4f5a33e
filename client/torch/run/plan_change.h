// A run's plan, and which ranks take a new one at a step boundary.
//
// A daemon's plan reaches ranks at different moments. The ranks take it
// together, once all have it: the step's sum over ranks carries all offers.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/units.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::runtime {

// A plan and the profile for which it was made; a resumed run uses it again.
struct SavedPlan {
  plan::RankProfile profile;
  plan::NodePlan plan;

  // Returns the rank's own part; null if there is none.
  const plan::RankPlan* own() const;
};

// The transient buffers of a plan, for the report.
struct PlanSummary {
  Bytes peak, lower_bound;
  std::string proved_by;
  int64_t mismatches = 0;
};

// A rank's offer: the last plan that it received (0: none), and its node (a
// number that the ranks of one node share).
struct PlanOffer {
  uint64_t plan = 0;
  int64_t node = 0;
};

// Returns for each rank whether the rank's node takes its plan now.
std::vector<bool> WhoTakes(const std::vector<PlanOffer>& offers);

// The memory that a rank needs in its GPU lease to record with new fractions.
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
