#include "client/torch/backend/cuda_backend.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "client/torch/exceptions.h"
#include "client/torch/memory/torch_cuda.h"
#include "kernels/ops/gpu_kernels.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

// One of torch's attention kernels, called with backend.h's arguments. Backward
// gets the output and its gradient in the dtype of q, as the kernels take them.
struct KernelCalls {
  AttentionResult (*attend)(const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, bool causal);
  AttentionGradients (*attend_backward)(const QueryRows& queries,
                                        const at::Tensor& k,
                                        const at::Tensor& v, bool causal);
};

// Returns [1, heads, rows, dim], stored with rows before heads.
at::Tensor InRows(const at::Tensor& t) { return Batched(t.contiguous()); }

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

// --- efficient: [1, heads, rows, dim], one number of heads for q, k and v ----

constexpr int64_t kLseAlignment = 32;  // rows; efficient kernels pad lse

// Repeats each head of k or v for the queries of its group.
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

// Pads the log-sum-exp as the kernels do: rows past the end are infinite.
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

// In bf16 the kernel reads the output with a row stride of heads * dim,
// whatever the tensor's stride is (Params::o_strideM of torch's
// kernel_backward.h). With another layout an H100 returned a dq that was off by
// 5 times its norm.
AttentionGradients EfficientBackward(const QueryRows& queries,
                                     const at::Tensor& k, const at::Tensor& v,
                                     bool causal) {
  const int64_t heads = queries.q.size(1);
  const at::ScalarType type = queries.q.scalar_type();
  const at::Tensor none;
  const auto [dq, dk, dv, bias] =
      at::_scaled_dot_product_efficient_attention_backward(
          Batched(queries.output_gradient.to(type)), Batched(queries.q),
          Batched(Expanded(k, heads)), Batched(Expanded(v, heads)), none,
          InRows(queries.output.to(type)), PaddedLse(queries.lse), none, none,
          /*dropout_p=*/0, {true, true, true, false}, causal);
  return {Flat(dq), SumOfGroups(Flat(dk), k.size(1)),
          SumOfGroups(Flat(dv), v.size(1))};
}

// --- cuDNN: [1, heads, rows, dim], rows before heads in memory ---------------
// The layout never changes, because torch caches a backward's plan by the sizes
// and strides of q, k and v alone: with another layout of the output or its
// gradient, a plan made for the first layout would misread it.

AttentionResult Cudnn(const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, bool causal) {
  const auto result = at::_scaled_dot_product_cudnn_attention(
      InRows(q), InRows(k), InRows(v), /*attn_bias=*/{},
      /*compute_log_sumexp=*/true, /*dropout_p=*/0, causal);
  return {Flat(std::get<0>(result)),
          std::get<1>(result).reshape({q.size(1), q.size(0)})};
}

AttentionGradients CudnnBackward(const QueryRows& queries, const at::Tensor& k,
                                 const at::Tensor& v, bool causal) {
  const at::ScalarType type = queries.q.scalar_type();
  const at::Tensor none;
  // Unused without dropout, but Blackwell's path converts its dtype.
  const at::Tensor seed = at::empty({}, queries.q.options().dtype(at::kLong));
  const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      InRows(queries.output_gradient.to(type)), InRows(queries.q), InRows(k),
      InRows(v), InRows(queries.output.to(type)),
      queries.lse.contiguous().unsqueeze(0).unsqueeze(3), seed, seed, none,
      none, none, queries.q.size(0), k.size(0), /*dropout_p=*/0, causal);
  return {Flat(dq), Flat(dk), Flat(dv)};
}

// REQUIRES: kFlash, kEfficient or kCudnn.
KernelCalls CallsOf(stream::AttentionKernel kernel) {
  using enum stream::AttentionKernel;
  if (kernel == kFlash) return {Flash, FlashBackward};
  if (kernel == kCudnn) return {Cudnn, CudnnBackward};
  SLUICE_CHECK(kernel == kEfficient);
  return {Efficient, EfficientBackward};
}

constexpr Backend::Traits kCudaTraits = {
    .name = "cuda", .blocks_in_fp32 = false, .causal_rows = 0, .tile_rows = 0};

DeviceIndex IndexOf(at::Device gpu) {
  return DeviceIndex(static_cast<uint64_t>(gpu.index()));
}

struct Parts {
  device::Driver* driver;
  TorchCuda* torch;
  at::Device gpu;
  stream::AttentionKernel asked;
  int capability;
  ops::MergeKernel merge;
  ops::TokenKernels tokens;
  void* stream;  // what torch's current stream was set to; null: it was not set
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const Parts& parts)
      : Backend(kCudaTraits), parts_(parts) {
    InstallBackend(parts_.gpu, this);
  }
  // The stream ends with the driver, so torch gets its default stream back.
  ~CudaBackend() override {
    InstallBackend(parts_.gpu, nullptr);
    if (parts_.stream != nullptr &&
        parts_.torch->CurrentStream(parts_.gpu.index()) == parts_.stream) {
      parts_.torch->SetCurrentStream(parts_.gpu.index(), nullptr);
    }
  }

  absl::Status Check(at::ScalarType type, int64_t head_dim) const override {
    if (type != at::kFloat && type != at::kBFloat16) {
      return absl::UnimplementedError(
          fmt::format("attention on {} is built for bf16 and fp32, not for {}",
                      parts_.gpu.str(), c10::toString(type)));
    }
    const auto refusal = stream::Refusal(BlockOf(type, head_dim));
    if (!refusal.has_value()) return absl::OkStatus();
    return absl::UnimplementedError(
        fmt::format("attention on {} by {}", parts_.gpu.str(), *refusal));
  }
  std::string KernelName(at::ScalarType type, int64_t head_dim) const override {
    return stream::Name(stream::KernelOf(BlockOf(type, head_dim)));
  }

  AttentionResult Attend(const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, bool causal) const override {
    return Calls(q, k).attend(q, k, v, causal);
  }

  AttentionGradients AttendBackward(const QueryRows& queries,
                                    const at::Tensor& k, const at::Tensor& v,
                                    bool causal) const override {
    return Calls(queries.q, k).attend_backward(queries, k, v, causal);
  }

  void Merge(const AttentionResult& running,
             const AttentionResult& block) const override {
    const device::Stream stream = CurrentStream();
    const ops::MergeShape shape = MergeShapeOf(running, block);
    const auto launch = [&](const auto* block_output) {
      ThrowIfError(
          parts_.merge.Launch(shape, running.output.data_ptr<float>(),
                              running.lse.data_ptr<float>(), block_output,
                              block.lse.const_data_ptr<float>(), stream));
    };
    if (block.output.scalar_type() == at::kFloat) {
      return launch(block.output.const_data_ptr<float>());
    }
    SLUICE_CHECK(block.output.scalar_type() == at::kBFloat16);
    launch(static_cast<const ops::BFloat16*>(block.output.const_data_ptr()));
  }

  void Compute(const TokenMath& what) const override {
    ThrowIfError(std::visit(
        [this](const auto& call) {
          return parts_.tokens.Launch(call.shape, call.tensors,
                                      CurrentStream());
        },
        what));
  }

  // cuBLAS sums products of bf16 in fp32; addmm.dtype_out stores the sum in
  // fp32.
  void AddWeightGradients(
      const at::Tensor& x,
      std::initializer_list<LinearGradients> layers) const override {
    for (const LinearGradients& layer : layers) {
      const at::Tensor transposed = layer.output.t();
      if (x.scalar_type() == at::kFloat) {
        layer.weight.addmm_(transposed, x);
      } else {
        at::addmm_out(layer.weight, layer.weight, transposed, x, at::kFloat);
      }
      if (layer.bias.defined()) {
        layer.bias.add_(
            at::sum(layer.output, {0}, /*keepdim=*/false, at::kFloat));
      }
    }
  }

 private:
  device::Stream CurrentStream() const {
    const auto stream = parts_.driver->AdoptStream(
        IndexOf(parts_.gpu), parts_.torch->CurrentStream(parts_.gpu.index()));
    ThrowIfError(stream.status());
    return *stream;
  }

  KernelCalls Calls(const at::Tensor& q, const at::Tensor& k) const {
    stream::AttentionBlock block = BlockOf(q.scalar_type(), q.size(-1));
    block.keys = k.size(0);
    return CallsOf(stream::KernelOf(block));
  }
  stream::AttentionBlock BlockOf(at::ScalarType type, int64_t head_dim) const {
    return {.asked = parts_.asked,
            .capability = parts_.capability,
            .element_bytes = static_cast<int64_t>(c10::elementSize(type)),
            .head_dim = head_dim,
            .value_dim = head_dim};
  }

  const Parts parts_;
};
}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> OpenCudaBackend(
    device::Driver* driver, c10::Device gpu, stream::AttentionKernel asked) {
  SLUICE_ASSIGN_OR_RETURN(TorchCuda* const torch, LoadTorchCuda());
  torch->SetDevice(gpu.index());
  SLUICE_ASSIGN_OR_RETURN(const ops::MergeKernel merge,
                          ops::MergeKernel::Load(driver));
  SLUICE_ASSIGN_OR_RETURN(const ops::TokenKernels tokens,
                          ops::TokenKernels::Load(driver));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<device::DeviceInfo> gpus,
                          driver->Devices());
  void* stream = nullptr;
  if (torch->CurrentStream(gpu.index()) == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(
        stream, driver->NativeStream(driver->ComputeStream(IndexOf(gpu))));
    torch->SetCurrentStream(gpu.index(), stream);
  }
  return std::make_unique<CudaBackend>(
      Parts{driver, torch, gpu, asked, gpus.at(IndexOf(gpu).value()).capability,
            merge, tokens, stream});
}

}  // namespace sluice::runtime
