// The timeline of one step, for the demo's report: what computed, what was
// copied, which blocks of the HBM lived when. Rank 0 only.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/train/step/stepper.h"

namespace sluice::train {

class StepTrace {
 public:
  // Starts recording when `on` and this is rank 0.
  StepTrace(const StepperContext& context, bool on);
  // Takes the record, with the step's `copies`: what follows is not in it.
  void Stop(const std::vector<client::CopyRecord>& copies);
  // Writes {"compute", "h2d", "d2h", "blocks", "hbm_bytes", "planned_bytes"};
  // nothing when off. Times: seconds on the monotonic clock. After Stop.
  absl::Status Write(const std::string& path);

 private:
  StepperContext context_;
  const bool on_;
  std::string text_;
};

// InvalidArgument: no file can be written there. Leaves nothing new.
absl::Status CheckTracePath(const std::string& path);

}  // namespace sluice::train
