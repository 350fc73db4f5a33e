#include "client/torch/baseline/alst_section.h"

#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "client/torch/baseline/baseline_parts.h"

namespace sluice::runtime::baseline {

Section::Section(const LayerTensors& weights, const LayerTensors& gradients,
                 std::span<const LayerMember> members) {
  for (const LayerMember member : members) {
    layer_.*member = Add(weights.*member, gradients.*member);
  }
}

at::Tensor Section::Add(const at::Tensor& weight, const at::Tensor& gradient) {
  if (!weight.defined()) return {};
  inputs_.push_back(Leaf(weight));
  gradients_.push_back(gradient);
  return inputs_.back();
}

void Section::AddSummed(const at::Tensor& rows, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  summed_.push_back(rows);
  sums_.push_back(gradient);
}

at::Tensor Section::Backward(std::vector<at::Tensor> outputs,
                             std::vector<at::Tensor> seeds,
                             const at::Tensor& x) {
  std::vector<at::Tensor> inputs = inputs_;
  const std::vector<at::Tensor> summed = std::exchange(summed_, {});
  inputs.insert(inputs.end(), summed.begin(), summed.end());
  inputs.push_back(x);
  const std::vector<at::Tensor> found =
      torch::autograd::grad(outputs, inputs, seeds);
  for (size_t i = 0; i < gradients_.size(); ++i) {
    gradients_[i].add_(found[i]);
  }
  for (size_t i = 0; i < summed.size(); ++i) {
    sums_[i].add_(at::sum(found[gradients_.size() + i], {0}, false, at::kFloat)
                      .view_as(sums_[i]));
  }
  sums_.clear();
  return found.back();
}

}  // namespace sluice::runtime::baseline
