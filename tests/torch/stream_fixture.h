// A streamed step on a test's node (test_node.h): ranks as threads, each with
// its copy engine and an arena of exactly stream::HostBytes().
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/torch/stream/streamed_model.h"
#include "gtest/gtest.h"
#include "planner/stream/stream_shape.h"
#include "tests/support/status_matchers.h"
#include "tests/torch/rank_threads.h"
#include "tests/torch/test_node.h"

namespace sluice::stream {

// For googletest, which prints a case's parameter.
inline void PrintTo(BackwardOrder order, std::ostream* out) {
  *out << (order == BackwardOrder::kKeysOuter ? "KeysOuter" : "QueriesOuter");
}

}  // namespace sluice::stream

namespace sluice::runtime {

struct StepCase {
  stream::ModelShape model;
  int64_t seq_len = 64;
  int64_t chunk = 16;
  int ranks = 1;
  stream::StreamOptions stream;
  at::ScalarType dtype = at::kFloat;
  double in_speed = 0;   // bytes per second into HBM; 0: no limit
  double out_speed = 0;  // bytes per second out of HBM; 0: no limit
  // Wraps the step's copy engine, if set.
  std::function<std::unique_ptr<client::CopyEngine>(client::CopyEngine*)>
      wrap_engine;
};

// Returns the options that determine the sizes of one rank's step.
stream::StreamOptions OptionsOf(const StepCase& c, int rank);

struct StepOutcome {
  double loss_sum = 0;
  int64_t count = 0;
  ModelTensors gradients;  // summed over ranks
  client::CopyStats copies;
  device::CallCounters before, after;  // rank 0's last step
};

// Returns the rows of a global per-token tensor that `rank` holds, chunk by
// chunk.
at::Tensor Deal(const at::Tensor& all, const stream::ChunkLayout& layout,
                int rank);

// Weights without special values such as a norm's ones, and a text with some
// ignored labels.
struct StepData {
  ModelTensors weights;
  at::Tensor tokens, labels;
  int64_t count = 0;
};
StepData MakeStepData(const StepCase& c, uint64_t seed);

// Runs `steps` steps. Returns the gradients of the last step.
StepOutcome RunStep(const StepCase& c, const StepData& data, int steps = 1);

}  // namespace sluice::runtime
