#include "client/torch/backend/cuda_backend.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "client/torch/backend/cuda_kernels.h"
#include "client/torch/backend/head_layout.h"
#include "client/torch/exceptions.h"
#include "client/torch/memory/torch_cuda.h"
#include "kernels/ops/merge_kernel.h"
#include "kernels/ops/token_kernels.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

constexpr Backend::Traits kCudaTraits = {
    .name = "cuda", .blocks_in_fp32 = false, .causal_rows = 0, .tile_rows = 0};

// Returns the driver's index of the GPU.
DeviceIndex IndexOf(at::Device gpu) {
  return DeviceIndex(static_cast<uint64_t>(gpu.index()));
}

absl::StatusOr<int> CapabilityOf(device::Driver* driver, at::Device gpu) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<device::DeviceInfo> gpus,
                          driver->Devices());
  return gpus.at(IndexOf(gpu).value()).capability;
}

class CudaBackend final : public Backend {
 public:
  // `stream` is what torch's current stream was set to; null if it was not set.
  CudaBackend(device::Driver* driver, TorchCuda* torch, at::Device gpu,
              stream::AttentionKernel asked, int capability,
              ops::MergeKernel merge, ops::TokenKernels tokens, void* stream)
      : Backend(kCudaTraits),
        driver_(driver),
        torch_(torch),
        gpu_(gpu),
        asked_(asked),
        capability_(capability),
        merge_(merge),
        tokens_(tokens),
        stream_(stream) {
    InstallBackend(gpu_, this);
  }
  // The stream ends with the driver, so torch gets its default stream back.
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
    const auto refusal = stream::Refusal(BlockOf(type, head_dim));
    if (!refusal.has_value()) return absl::OkStatus();
    return absl::UnimplementedError(
        fmt::format("attention on {} by {}", gpu_.str(), *refusal));
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
             const AttentionResult& block) const override;
  void Compute(const TokenMath& what) const override;
  void AddWeightGradients(
      const at::Tensor& x,
      std::initializer_list<LinearGradients> layers) const override;

 private:
  // Returns torch's current stream.
  device::Stream CurrentStream() const;

  KernelCalls Calls(const at::Tensor& q, const at::Tensor& k) const {
    stream::AttentionBlock block = BlockOf(q.scalar_type(), q.size(-1));
    block.keys = k.size(0);
    return CallsOf(stream::KernelOf(block));
  }
  stream::AttentionBlock BlockOf(at::ScalarType type, int64_t head_dim) const {
    return {.asked = asked_,
            .capability = capability_,
            .element_bytes = static_cast<int64_t>(c10::elementSize(type)),
            .head_dim = head_dim,
            .value_dim = head_dim};
  }

  device::Driver* const driver_;
  TorchCuda* const torch_;
  const at::Device gpu_;
  const stream::AttentionKernel asked_;
  const int capability_;
  const ops::MergeKernel merge_;
  const ops::TokenKernels tokens_;
  void* const stream_;
};

device::Stream CudaBackend::CurrentStream() const {
  const auto stream =
      driver_->AdoptStream(IndexOf(gpu_), torch_->CurrentStream(gpu_.index()));
  ThrowIfError(stream.status());
  return *stream;
}

void CudaBackend::Merge(const AttentionResult& running,
                        const AttentionResult& block) const {
  const device::Stream stream = CurrentStream();
  const ops::MergeShape shape = MergeShapeOf(running, block);
  auto* const o = running.output.data_ptr<float>();
  auto* const lse = running.lse.data_ptr<float>();
  const auto* const block_lse = block.lse.const_data_ptr<float>();
  if (block.output.scalar_type() == at::kFloat) {
    return ThrowIfError(merge_.Launch(shape, o, lse,
                                      block.output.const_data_ptr<float>(),
                                      block_lse, stream));
  }
  SLUICE_CHECK(block.output.scalar_type() == at::kBFloat16);
  ThrowIfError(merge_.Launch(
      shape, o, lse,
      static_cast<const ops::BFloat16*>(block.output.const_data_ptr()),
      block_lse, stream));
}

void CudaBackend::Compute(const TokenMath& what) const {
  ThrowIfError(std::visit(
      [this](const auto& call) {
        return tokens_.Launch(call.shape, call.tensors, CurrentStream());
      },
      what));
}

// cuBLAS sums products of bf16 in fp32; addmm.dtype_out stores the sum in fp32.
void CudaBackend::AddWeightGradients(
    const at::Tensor& x, std::initializer_list<LinearGradients> layers) const {
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

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> OpenCudaBackend(
    device::Driver* driver, c10::Device gpu, stream::AttentionKernel asked) {
  SLUICE_ASSIGN_OR_RETURN(TorchCuda* const torch, LoadTorchCuda());
  torch->SetDevice(gpu.index());
  SLUICE_ASSIGN_OR_RETURN(const ops::MergeKernel merge,
                          ops::MergeKernel::Load(driver));
  SLUICE_ASSIGN_OR_RETURN(const ops::TokenKernels tokens,
                          ops::TokenKernels::Load(driver));
  SLUICE_ASSIGN_OR_RETURN(const int capability, CapabilityOf(driver, gpu));
  void* stream = nullptr;
  if (torch->CurrentStream(gpu.index()) == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(
        stream, driver->NativeStream(driver->ComputeStream(IndexOf(gpu))));
    torch->SetCurrentStream(gpu.index(), stream);
  }
  return std::make_unique<CudaBackend>(driver, torch, gpu, asked, capability,
                                       merge, tokens, stream);
}

}  // namespace sluice::runtime
