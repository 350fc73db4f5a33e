// A model's tensors as views into one flat buffer.
//
// ZeRO-1 cuts the buffer into buckets without regard to tensors, and one buffer
// is one allocation, so no HBM is lost between tensors. Weights have the
// model's dtype, gradients are fp32; both have the same order
// (runtime::NamedTensors), so a position means the same in both.
//
// Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/run/host_stage.h"
#include "planner/stream/layouts.h"

namespace sluice::train {

// One tensor's place in the flat buffer, in elements.
struct FlatEntry {
  std::string name;  // ours: "layers.2.q_weight"
  std::vector<int64_t> shape;
  int64_t offset = 0;
  int64_t size = 0;
  bool decays = false;  // weight decay: matrices, not norms and biases
};

std::vector<FlatEntry> FlatEntries(const stream::ModelShape& config);

class FlatModel {
 public:
  // Makes a zero-filled model as one tensor, from c10's current allocator of
  // the device.
  FlatModel(const stream::ModelShape& config, at::ScalarType dtype,
            at::Device device);

  const stream::ModelShape& shape() const { return shape_; }
  const std::vector<FlatEntry>& entries() const { return entries_; }
  const at::Tensor& flat() const { return flat_; }
  runtime::ModelTensors& tensors() { return tensors_; }
  int64_t size() const { return flat_.numel(); }

  // Sets one of entries() from values of any type in host memory, through
  // `stage`. Errors are the stage's.
  absl::Status Set(const FlatEntry& entry, const at::Tensor& values,
                   runtime::HostStage& stage);
  // Sets the first weights of `seed` (model_tensors.h) through `stage`. They
  // are the same for every number of ranks. Errors are the stage's.
  absl::Status Initialize(const stream::ModelShape& config, uint64_t seed,
                          runtime::HostStage& stage);

 private:
  stream::ModelShape shape_;
  std::vector<FlatEntry> entries_;
  at::Tensor flat_;
  runtime::ModelTensors tensors_;
};

}  // namespace sluice::train
