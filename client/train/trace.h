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
  void Stop(const std::vector<client::CopyRecord>& copies);
  // Writes the recorded timeline, if any, with times in seconds of the
  // monotonic clock. Call it after Stop.
  absl::Status Write(const std::string& path);

 private:
  StepperContext context_;
  const bool on_;
  std::string text_;
};

// InvalidArgument: no file can be written there. Leaves nothing behind.
absl::Status CheckTracePath(const std::string& path);

}  // namespace sluice::train
