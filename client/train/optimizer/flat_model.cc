#include "client/train/optimizer/flat_model.h"

#include <ATen/ops/zeros.h>

#include "client/torch/math/model_tensors.h"
#include "client/torch/placement.h"

namespace sluice::train {

std::vector<FlatEntry> FlatEntries(const stream::ModelShape& config) {
  runtime::ModelTensors unused;
  const auto named = runtime::NamedTensors(config, unused);
  const auto shapes = runtime::TensorShapes(config);
  std::vector<FlatEntry> entries;
  int64_t offset = 0;
  for (size_t i = 0; i < named.size(); ++i) {
    FlatEntry entry{named[i].name, shapes[i], offset, 1, shapes[i].size() > 1};
    for (const int64_t n : entry.shape) entry.size *= n;
    offset += entry.size;
    entries.push_back(std::move(entry));
  }
  return entries;
}

FlatModel::FlatModel(const stream::ModelShape& config, at::ScalarType dtype,
                     at::Device device)
    : shape_(config), entries_(FlatEntries(config)) {
  flat_ = at::zeros({entries_.back().offset + entries_.back().size},
                    runtime::On(device, dtype));
  const auto named = runtime::NamedTensors(config, tensors_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const FlatEntry& entry = entries_[i];
    *named[i].tensor =
        flat_.narrow(0, entry.offset, entry.size).view(entry.shape);
  }
}

absl::Status FlatModel::Set(const FlatEntry& entry, const at::Tensor& values,
                            runtime::HostStage& stage) {
  const at::Tensor typed = values.to(flat_.scalar_type());
  return stage.Write(flat_.narrow(0, entry.offset, entry.size),
                     typed.const_data_ptr());
}

absl::Status FlatModel::Initialize(const stream::ModelShape& config,
                                   uint64_t seed, runtime::HostStage& stage) {
  return runtime::DrawWeights(config, seed,
                              [&](size_t i, const at::Tensor& drawn) {
                                return Set(entries_[i], drawn, stage);
                              });
}

}  // namespace sluice::train
