#include "client/torch/backend/cpu_backend.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "client/torch/backend/head_layout.h"
#include "kernels/ops/merge.h"

namespace sluice::runtime {
namespace {

// Its causal kernel goes through whole tiles of 512 keys. A causal block of 512
// rows cut at 256 takes 0.79 of an uncut one's time; at 128, 0.74, but with
// thrice as many calls and buffers.
constexpr Backend::Traits kCpuTraits = {
    .name = "cpu", .blocks_in_fp32 = true, .causal_rows = 256, .tile_rows = 64};

class Cpu final : public Backend {
 public:
  Cpu() : Backend(kCpuTraits) {}

  absl::Status Check(at::ScalarType, int64_t) const override {
    return absl::OkStatus();
  }
  std::string KernelName(at::ScalarType, int64_t) const override {
    return "flash on the CPU";
  }

  AttentionResult Attend(const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, bool causal) const override {
    const auto [output, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        Batched(q), Batched(k), Batched(v), /*dropout_p=*/0, causal);
    return {Flat(output), lse.squeeze(0)};
  }

  AttentionGradients AttendBackward(const QueryRows& queries,
                                    const at::Tensor& k, const at::Tensor& v,
                                    bool causal) const override {
    const auto [dq, dk, dv] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            Batched(queries.output_gradient), Batched(queries.q), Batched(k),
            Batched(v), Batched(queries.output), queries.lse.unsqueeze(0),
            /*dropout_p=*/0, causal);
    return {Flat(dq), Flat(dk), Flat(dv)};
  }

  void Merge(const AttentionResult& running,
             const AttentionResult& block) const override {
    ops::MergeAttention(
        MergeShapeOf(running, block), running.output.data_ptr<float>(),
        running.lse.data_ptr<float>(), block.output.const_data_ptr<float>(),
        block.lse.const_data_ptr<float>());
  }
};

}  // namespace

const Backend& CpuBackend() {
  static const Cpu backend;
  return backend;
}

}  // namespace sluice::runtime
