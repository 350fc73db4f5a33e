#include "client/torch/math/attention_blocks.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "kernels/ops/merge.h"

namespace sluice::runtime {
namespace {

// [rows, heads, dim] <-> [1, heads, rows, dim], no copy in fp32.
at::Tensor Batched(const at::Tensor& t) {
  return t.to(at::kFloat).transpose(0, 1).unsqueeze(0);
}
at::Tensor Flat(const at::Tensor& t) { return t.squeeze(0).transpose(0, 1); }

}  // namespace

BlockOutput AttendBlock(const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, bool causal) {
  const auto [output, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      Batched(q), Batched(k), Batched(v), /*dropout_p=*/0, causal);
  return {Flat(output), lse.squeeze(0)};
}

void MergeBlock(at::Tensor& output, at::Tensor& lse, const BlockOutput& block) {
  const ops::MergeShape shape{
      .rows = output.size(0),
      .heads = output.size(1),
      .dim = output.size(2),
      .o = {output.stride(0), output.stride(1)},
      .lse = {lse.stride(1), lse.stride(0)},
      .block_o = {block.output.stride(0), block.output.stride(1)},
      .block_lse = {block.lse.stride(1), block.lse.stride(0)}};
  float* o = output.data_ptr<float>();
  float* sum = lse.data_ptr<float>();
  ops::MergeAttention(shape, o, sum, block.output.const_data_ptr<float>(),
                      block.lse.const_data_ptr<float>());
}

BlockGradients AttendBlockBackward(const at::Tensor& output_gradient,
                                   const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v,
                                   const at::Tensor& merged_output,
                                   const at::Tensor& merged_lse, bool causal) {
  const auto [dq, dk, dv] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          Batched(output_gradient), Batched(q), Batched(k), Batched(v),
          Batched(merged_output), merged_lse.unsqueeze(0), /*dropout_p=*/0,
          causal);
  return {Flat(dq), Flat(dk), Flat(dv)};
}

}  // namespace sluice::runtime
