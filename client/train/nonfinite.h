// Explains a step with a loss or gradient that is not finite.
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <string>

#include "client/train/launch/options.h"
#include "client/train/optimizer/flat_model.h"

namespace sluice::train {

// Returns the first parameter with a value that is not finite, and the value's
// index; empty if all are finite.
std::string FirstNonFinite(const FlatModel& model);

struct NonFinite {
  int64_t step = 0;        // counts from 1
  int64_t first_step = 1;  // of this invocation
  double loss = 0, norm = 0, lr = 0;
  std::string weight;    // FirstNonFinite of the weights before the update
  std::string gradient;  // of this rank's gradients
  bool resumed = false;
};
// Formats "step 7: the loss is nan and the gradient norm nan (lr 0.001, fp32);
// …; stopped before the update: …".
std::string Explain(const NonFinite& what, const RunOptions& options);

}  // namespace sluice::train
