#include "client/torch/backend/attention_kernel.h"

#include <fmt/format.h>

namespace sluice::runtime {
namespace {

constexpr int64_t kHeadDimMultiple = 8;

// Of a head. torch's own gate of cuDNN's attention (sdp_utils.cpp) has 128 for
// the cuDNN 9.19 of its wheels.
int64_t MostHeadDim(AttentionKernel kernel) {
  return kernel == AttentionKernel::kCudnn ? 128 : 256;
}

// The operators of cuDNN's attention do not look: they would read fp32 as fp16.
bool TakesFp32(AttentionKernel kernel) {
  return kernel == AttentionKernel::kEfficient;
}

}  // namespace

const char* Name(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kAuto:
      return "auto";
    case AttentionKernel::kFlash:
      return "flash";
    case AttentionKernel::kEfficient:
      return "efficient";
    case AttentionKernel::kCudnn:
      return "cudnn";
  }
  return "?";
}

AttentionKernel KernelOf(AttentionKernel asked, stream::Dtype dtype) {
  if (asked != AttentionKernel::kAuto) return asked;
  return dtype == stream::Dtype::kFp32 ? AttentionKernel::kEfficient
                                       : AttentionKernel::kFlash;
}

std::optional<std::string> Refusal(AttentionKernel asked, stream::Dtype dtype,
                                   int64_t head_dim) {
  const AttentionKernel kernel = KernelOf(asked, dtype);
  if (dtype == stream::Dtype::kFp32 && !TakesFp32(kernel)) {
    return "takes bf16 alone, and this model is in fp32: compute in bf16, or "
           "take efficient, which auto takes for fp32";
  }
  const int64_t most = MostHeadDim(kernel);
  if (head_dim <= most && head_dim % kHeadDimMultiple == 0) {
    return std::nullopt;
  }
  return fmt::format(
      "takes heads of a multiple of {} and at most {}, and this model's have "
      "{}",
      kHeadDimMultiple, most, head_dim);
}

}  // namespace sluice::runtime
