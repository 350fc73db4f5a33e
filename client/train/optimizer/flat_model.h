// A model's tensors as views into one flat buffer, which ZeRO-1 cuts into
// buckets without regard to tensors. Weights have the model's dtype, gradients
// are fp32; both have the same order (runtime::NamedTensors).
// Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/run/host_stage.h"

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
  // Zero-filled, one allocation from c10's current allocator of the device.
  FlatModel(const stream::ModelShape& config, at::ScalarType dtype,
            at::Device device);

  const stream::ModelShape& shape() const { return shape_; }
  const std::vector<FlatEntry>& entries() const { return entries_; }
  const at::Tensor& flat() const { return flat_; }
  runtime::ModelTensors& tensors() { return tensors_; }
  int64_t size() const { return flat_.numel(); }

  // Sets one of entries() from values of any type in host memory.
  absl::Status Set(const FlatEntry& entry, const at::Tensor& values,
                   runtime::HostStage& stage);
  // Sets the first weights of `seed`, the same for every number of ranks.
  absl::Status Initialize(const stream::ModelShape& config, uint64_t seed,
                          runtime::HostStage& stage);

 private:
  stream::ModelShape shape_;
  std::vector<FlatEntry> entries_;
  at::Tensor flat_;
  runtime::ModelTensors tensors_;
};

}  // namespace sluice::train
