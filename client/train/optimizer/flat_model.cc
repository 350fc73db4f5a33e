#include "client/train/optimizer/flat_model.h"

#include <ATen/ops/zeros.h>

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
    : entries_(FlatEntries(config)) {
  flat_ = at::zeros({entries_.back().offset + entries_.back().size},
                    runtime::On(device, dtype));
  const auto named = runtime::NamedTensors(config, tensors_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const FlatEntry& entry = entries_[i];
    *named[i].tensor =
        flat_.narrow(0, entry.offset, entry.size).view(entry.shape);
  }
}

void FlatModel::Initialize(const stream::ModelShape& config, uint64_t seed) {
  // A second copy for a moment: at this point neither gradients nor optimizer
  // states exist yet, so the peak of the run is elsewhere.
  runtime::ModelTensors initial = runtime::InitialTensors(
      config, flat_.scalar_type(), flat_.device(), seed);
  const auto from = runtime::NamedTensors(config, initial);
  const auto to = runtime::NamedTensors(config, tensors_);
  for (size_t i = 0; i < to.size(); ++i) to[i].tensor->copy_(*from[i].tensor);
}

}  // namespace sluice::train
