#include "client/torch/math/backend.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <fmt/format.h>

#include "client/torch/exceptions.h"
#include "kernels/ops/merge.h"

namespace sluice::runtime {
namespace {

// --- cpu: ATen's flash attention ---------------------------------------------

// [rows, heads, dim] <-> [1, heads, rows, dim], no copy.
at::Tensor Batched(const at::Tensor& t) {
  return t.transpose(0, 1).unsqueeze(0);
}
at::Tensor Flat(const at::Tensor& t) { return t.squeeze(0).transpose(0, 1); }

AttentionResult AttendOnCpu(const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, bool causal) {
  const auto [output, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      Batched(q), Batched(k), Batched(v), /*dropout_p=*/0, causal);
  return {Flat(output), lse.squeeze(0)};
}

AttentionGradients AttendBackwardOnCpu(const QueryRows& queries,
                                       const at::Tensor& k, const at::Tensor& v,
                                       bool causal) {
  const auto [dq, dk, dv] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          Batched(queries.output_gradient), Batched(queries.q), Batched(k),
          Batched(v), Batched(queries.output), queries.lse.unsqueeze(0),
          /*dropout_p=*/0, causal);
  return {Flat(dq), Flat(dk), Flat(dv)};
}

void MergeOnCpu(const AttentionResult& running, const AttentionResult& block) {
  const ops::MergeShape shape{
      .rows = block.output.size(0),
      .heads = block.output.size(1),
      .dim = block.output.size(2),
      .o = {running.output.stride(0), running.output.stride(1)},
      .lse = {running.lse.stride(1), running.lse.stride(0)},
      .block_o = {block.output.stride(0), block.output.stride(1)},
      .block_lse = {block.lse.stride(1), block.lse.stride(0)}};
  ops::MergeAttention(
      shape, running.output.data_ptr<float>(), running.lse.data_ptr<float>(),
      block.output.const_data_ptr<float>(), block.lse.const_data_ptr<float>());
}

// Its causal kernel goes through whole tiles of 512 keys. A causal block of 512
// rows cut at 256 takes 0.79 of an uncut one's time; at 128, 0.74, but with
// thrice as many calls and buffers.
constexpr Backend kCpu = {.name = "cpu",
                          .blocks_in_fp32 = true,
                          .causal_rows = 256,
                          .tile_rows = 64,
                          .attend = AttendOnCpu,
                          .attend_backward = AttendBackwardOnCpu,
                          .merge = MergeOnCpu};

}  // namespace

absl::StatusOr<const Backend*> FindBackend(at::Device device) {
  switch (device.type()) {
    case at::kCPU:
      return &kCpu;
    default:
      return absl::UnimplementedError(fmt::format(
          "this build has no attention on {}: it computes on cpu, which is "
          "where the memory of a simulated GPU is",
          device.str()));
  }
}

const Backend& BackendOf(const at::Tensor& tensor) {
  const auto found = FindBackend(tensor.device());
  ThrowIfError(found.status());
  return **found;
}

}  // namespace sluice::runtime
