#include "client/torch/math/first_weights.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <string>
#include <vector>

#include "client/torch/math/model_tensors.h"
#include "client/torch/placement.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

at::Tensor Draw(const stream::ModelShape& config, const std::string& name,
                at::IntArrayRef shape, at::Generator& generator) {
  at::Tensor drawn = at::empty(shape, OnHost(at::kFloat));
  if (name.ends_with("bias")) return drawn.zero_();
  if (name.ends_with("norm_weight") || name.ends_with("norm1_weight") ||
      name.ends_with("norm2_weight")) {
    return drawn.fill_(1);
  }
  double scale = config.init_std;
  if (name.ends_with("o_weight") || name.ends_with("down_weight")) {
    scale /= std::sqrt(2.0 * static_cast<double>(config.layers));
  }
  return drawn.normal_(0, scale, generator);
}

}  // namespace

absl::Status DrawWeights(const stream::ModelShape& config, uint64_t seed,
                         const TakeDrawn& take) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const std::vector<std::vector<int64_t>> shapes = TensorShapes(config);
  ModelTensors unused;
  const std::vector<NamedTensor> named = NamedTensors(config, unused);
  for (size_t i = 0; i < named.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(
        take(i, Draw(config, named[i].name, shapes[i], generator)));
  }
  return absl::OkStatus();
}

}  // namespace sluice::runtime
