#include "client/torch/backend/backend.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <fmt/format.h>

#include <array>
#include <atomic>

#include "client/torch/backend/head_layout.h"
#include "client/torch/exceptions.h"
#include "kernels/ops/merge.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

constexpr size_t kMostGpus = 64;
constinit std::array<std::atomic<const Backend*>, kMostGpus> gpus;

size_t SlotOf(at::Device gpu) {
  const auto index = static_cast<size_t>(gpu.index());
  SLUICE_CHECK(gpu.is_cuda() && gpu.has_index() && index < kMostGpus);
  return index;
}

// ATen's causal kernel goes through whole tiles of 512 keys. A causal block of
// 512 rows cut at 256 takes 0.79 of an uncut one's time; at 128, 0.74, but with
// thrice as many calls and buffers.
constexpr Backend::Traits kCpuTraits = {
    .name = "cpu", .blocks_in_fp32 = true, .causal_rows = 256, .tile_rows = 64};

// ATen's flash attention, merged by kernels/ops.
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

absl::StatusOr<const Backend*> FindBackend(at::Device device) {
  static const Cpu cpu;
  if (device.is_cpu()) return &cpu;
  if (device.is_cuda() && device.has_index()) {
    const Backend* const backend = gpus[SlotOf(device)];
    if (backend != nullptr) return backend;
  }
  return absl::UnimplementedError(fmt::format(
      "this process has no attention on {}: it computes on cpu, which is where "
      "the memory of a simulated GPU is, and on the GPU whose memory it leased",
      device.str()));
}

absl::Status CheckBackend(at::Device device, at::ScalarType type,
                          int64_t head_dim) {
  SLUICE_ASSIGN_OR_RETURN(const Backend* const backend, FindBackend(device));
  return backend->Check(type, head_dim);
}

const Backend& BackendOf(const at::Tensor& tensor) {
  const auto found = FindBackend(tensor.device());
  ThrowIfError(found.status());
  return **found;
}

void InstallBackend(at::Device gpu, const Backend* backend) {
  gpus[SlotOf(gpu)] = backend;
}

}  // namespace sluice::runtime
