#include "client/torch/backend/cuda_backend.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <limits>
#include <utility>

#include "client/torch/backend/head_layout.h"
#include "client/torch/exceptions.h"
#include "client/torch/memory/torch_cuda.h"
#include "kernels/ops/merge_kernel.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

constexpr Backend::Traits kTraits = {.name = "flash (fp32: efficient)",
                                     .blocks_in_fp32 = false,
                                     .causal_rows = 0,
                                     .tile_rows = 0};

constexpr int64_t kHeadDimMultiple = 8, kMostHeadDim = 256;
constexpr int64_t kLseAlignment = 32;  // of the efficient kernels' rows

// --- flash: [1, rows, heads, dim] --------------------------------------------

AttentionResult Flash(const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, bool causal) {
  const auto result = at::_flash_attention_forward(
      q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), /*cum_seq_q=*/{},
      /*cum_seq_k=*/{}, q.size(0), k.size(0), /*dropout_p=*/0, causal,
      /*return_debug_mask=*/false);
  return {std::get<0>(result).squeeze(0), std::get<1>(result).squeeze(0)};
}

AttentionGradients FlashBackward(const QueryRows& queries, const at::Tensor& k,
                                 const at::Tensor& v, bool causal) {
  const at::ScalarType type = queries.q.scalar_type();
  const at::Tensor none;
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      queries.output_gradient.to(type).unsqueeze(0), queries.q.unsqueeze(0),
      k.unsqueeze(0), v.unsqueeze(0), queries.output.to(type).unsqueeze(0),
      queries.lse.unsqueeze(0).contiguous(), none, none, queries.q.size(0),
      k.size(0), /*dropout_p=*/0, causal, none, none);
  return {dq.squeeze(0), dk.squeeze(0), dv.squeeze(0)};
}

// --- efficient: [1, heads, rows, dim], as many heads everywhere --------------

// A head of k or v for each of its group's queries.
at::Tensor Expanded(const at::Tensor& t, int64_t heads) {
  const int64_t group = heads / t.size(1);
  return group == 1 ? t : t.repeat_interleave(group, 1);
}
at::Tensor SumOfGroups(const at::Tensor& gradient, int64_t kv_heads) {
  if (gradient.size(1) == kv_heads) return gradient;
  return gradient.unflatten(1, {kv_heads, -1}).sum(2);
}

AttentionResult Efficient(const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, bool causal) {
  const auto result = at::_scaled_dot_product_efficient_attention(
      Batched(q), Batched(Expanded(k, q.size(1))),
      Batched(Expanded(v, q.size(1))), /*attn_bias=*/{},
      /*compute_log_sumexp=*/true, /*dropout_p=*/0, causal);
  return {Flat(std::get<0>(result)),
          std::get<1>(result).squeeze(0).narrow(1, 0, q.size(0))};
}

// As the kernels made it: the rows that are not there are infinite.
at::Tensor PaddedLse(const at::Tensor& lse) {
  const int64_t rows = lse.size(1);
  const int64_t padded =
      (rows + kLseAlignment - 1) / kLseAlignment * kLseAlignment;
  at::Tensor all =
      at::full({1, lse.size(0), padded}, std::numeric_limits<float>::infinity(),
               lse.options());
  all.narrow(2, 0, rows).copy_(lse);
  return all;
}

AttentionGradients EfficientBackward(const QueryRows& queries,
                                     const at::Tensor& k, const at::Tensor& v,
                                     bool causal) {
  const int64_t heads = queries.q.size(1);
  const at::Tensor none;
  const auto [dq, dk, dv, bias] =
      at::_scaled_dot_product_efficient_attention_backward(
          Batched(queries.output_gradient), Batched(queries.q),
          Batched(Expanded(k, heads)), Batched(Expanded(v, heads)), none,
          Batched(queries.output), PaddedLse(queries.lse), none, none,
          /*dropout_p=*/0, {true, true, true, false}, causal);
  return {Flat(dq), SumOfGroups(Flat(dk), k.size(1)),
          SumOfGroups(Flat(dv), v.size(1))};
}

// -----------------------------------------------------------------------------

// As the driver counts.
DeviceIndex IndexOf(at::Device gpu) {
  return DeviceIndex(static_cast<uint64_t>(gpu.index()));
}

bool IsFlash(const at::Tensor& q) { return q.scalar_type() == at::kBFloat16; }

class CudaBackend final : public Backend {
 public:
  // `stream`: what torch's current stream was set to; null: nothing.
  CudaBackend(device::Driver* driver, TorchCuda* torch, at::Device gpu,
              ops::MergeKernel merge, void* stream)
      : Backend(kTraits),
        driver_(driver),
        torch_(torch),
        gpu_(gpu),
        merge_(merge),
        stream_(stream) {
    InstallBackend(gpu_, this);
  }
  // The stream goes with the driver: torch has its default one again.
  ~CudaBackend() override {
    InstallBackend(gpu_, nullptr);
    if (stream_ != nullptr && torch_->CurrentStream(gpu_.index()) == stream_) {
      torch_->SetCurrentStream(gpu_.index(), nullptr);
    }
  }

  absl::Status Check(at::ScalarType type, int64_t head_dim) const override {
    if (type != at::kFloat && type != at::kBFloat16) {
      return absl::UnimplementedError(
          fmt::format("attention on {} is built for bf16 and fp32, not for {}",
                      gpu_.str(), c10::toString(type)));
    }
    if (head_dim <= kMostHeadDim && head_dim % kHeadDimMultiple == 0) {
      return absl::OkStatus();
    }
    return absl::UnimplementedError(fmt::format(
        "attention on {} takes heads of a multiple of {} and at most {}, and "
        "this model's have {}",
        gpu_.str(), kHeadDimMultiple, kMostHeadDim, head_dim));
  }

  AttentionResult Attend(const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, bool causal) const override {
    return IsFlash(q) ? Flash(q, k, v, causal) : Efficient(q, k, v, causal);
  }

  AttentionGradients AttendBackward(const QueryRows& queries,
                                    const at::Tensor& k, const at::Tensor& v,
                                    bool causal) const override {
    return IsFlash(queries.q) ? FlashBackward(queries, k, v, causal)
                              : EfficientBackward(queries, k, v, causal);
  }

  void Merge(const AttentionResult& running,
             const AttentionResult& block) const override;

 private:
  device::Driver* const driver_;
  TorchCuda* const torch_;
  const at::Device gpu_;
  const ops::MergeKernel merge_;
  void* const stream_;
};

void CudaBackend::Merge(const AttentionResult& running,
                        const AttentionResult& block) const {
  const auto stream =
      driver_->AdoptStream(IndexOf(gpu_), torch_->CurrentStream(gpu_.index()));
  ThrowIfError(stream.status());
  const ops::MergeShape shape = MergeShapeOf(running, block);
  auto* const o = running.output.data_ptr<float>();
  auto* const lse = running.lse.data_ptr<float>();
  const auto* const block_lse = block.lse.const_data_ptr<float>();
  if (block.output.scalar_type() == at::kFloat) {
    return ThrowIfError(merge_.Launch(shape, o, lse,
                                      block.output.const_data_ptr<float>(),
                                      block_lse, *stream));
  }
  SLUICE_CHECK(IsFlash(block.output));
  ThrowIfError(merge_.Launch(
      shape, o, lse,
      static_cast<const ops::BFloat16*>(block.output.const_data_ptr()),
      block_lse, *stream));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> OpenCudaBackend(device::Driver* driver,
                                                         c10::Device gpu) {
  SLUICE_ASSIGN_OR_RETURN(TorchCuda* const torch, LoadTorchCuda());
  torch->SetDevice(gpu.index());
  SLUICE_ASSIGN_OR_RETURN(const ops::MergeKernel merge,
                          ops::MergeKernel::Load(driver));
  void* stream = nullptr;
  if (torch->CurrentStream(gpu.index()) == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(
        stream, driver->NativeStream(driver->ComputeStream(IndexOf(gpu))));
    torch->SetCurrentStream(gpu.index(), stream);
  }
  return std::make_unique<CudaBackend>(driver, torch, gpu, merge, stream);
}

}  // namespace sluice::runtime
