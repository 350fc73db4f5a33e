// The timeline of one step, for the demo's report: compute, copies, and the
// live blocks of HBM. Rank 0 only.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/train/step/stepper.h"

namespace sluice::train {

class StepTrace {
 public:
  // Records from now on if `on` is true and this is rank 0.
  StepTrace(const StepperContext& context, bool on);
  // Ends the recording and keeps the step's `copies`.
  void Stop(const std::vector<client::CopyRecord>& copies);
  // Writes {"compute", "h2d", "d2h", "blocks", "hbm_bytes", "planned_bytes"},
  // with times in seconds of the monotonic clock. Does nothing if nothing was
  // recorded. Call it after Stop.
  absl::Status Write(const std::string& path);

 private:
  StepperContext context_;
  const bool on_;
  std::string text_;
};

// Checks that a file can be written there; else InvalidArgument. Leaves nothing
// behind.
absl::Status CheckTracePath(const std::string& path);

}  // namespace sluice::train
