#include "client/torch/backend/attention_kernel.h"

#include <fmt/format.h>

namespace sluice::runtime {
namespace {

constexpr int64_t kHeadDimMultiple = 8;
constexpr int kHopper = 90;

// The widest head. torch's own gate of cuDNN's attention (sdp_utils.cpp) has
// 128 for the cuDNN 9.19 of its wheels.
int64_t MostHeadDim(AttentionKernel kernel) {
  return kernel == AttentionKernel::kCudnn ? 128 : 256;
}

bool Takes(AttentionKernel kernel, int64_t head_dim) {
  return head_dim <= MostHeadDim(kernel) && head_dim % kHeadDimMultiple == 0;
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

AttentionKernel KernelOf(AttentionKernel asked, stream::Dtype dtype,
                         int64_t head_dim, int capability) {
  if (asked != AttentionKernel::kAuto) return asked;
  if (dtype == stream::Dtype::kFp32) return AttentionKernel::kEfficient;
  return capability == kHopper && Takes(AttentionKernel::kCudnn, head_dim)
             ? AttentionKernel::kCudnn
             : AttentionKernel::kFlash;
}

std::optional<std::string> Refusal(AttentionKernel asked, stream::Dtype dtype,
                                   int64_t head_dim) {
  const AttentionKernel kernel = KernelOf(asked, dtype, head_dim, 0);
  if (dtype == stream::Dtype::kFp32 && !TakesFp32(kernel)) {
    return "takes bf16 alone, and this model is in fp32: compute in bf16, or "
           "take efficient, which auto takes for fp32";
  }
  if (Takes(kernel, head_dim)) return std::nullopt;
  return fmt::format(
      "takes heads of a multiple of {} and at most {}, and this model's have "
      "{}",
      kHeadDimMultiple, MostHeadDim(kernel), head_dim);
}

}  // namespace sluice::runtime
