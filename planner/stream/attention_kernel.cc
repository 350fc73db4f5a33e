#include "planner/stream/attention_kernel.h"

#include <fmt/format.h>

#include <initializer_list>
#include <limits>

namespace sluice::stream {
namespace {

constexpr int kHopper = 90;
constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

struct KernelTraits {
  const char* name;
  int64_t most_bytes = 0;  // the largest element; the smallest has 2 bytes
  int64_t widest = 0;      // the widest supported head
  int64_t multiple = 8;    // head widths must be a multiple of this
  int64_t least_keys = 1;
  bool window = false;
};

// Ordered by AttentionKernel.
constexpr KernelTraits kTraits[] = {
    {.name = "auto"},
    {.name = "flash", .most_bytes = 2, .widest = 256, .window = true},
    {.name = "efficient", .most_bytes = 4, .widest = 256},
    // cuDNN's operators do not check the dtype and would read fp32 as fp16.
    // torch's own check (sdp_utils.cpp) limits heads to 128 for the cuDNN 9.19
    // of its wheels. cuDNN refuses a single key, and torch does not pass
    // windows to it.
    {.name = "cudnn", .most_bytes = 2, .widest = 128, .least_keys = 2},
    {.name = "flash (FA3)", .most_bytes = 2, .widest = 256, .window = true},
    // torch's backward with FA4 refuses windows (torch/nn/attention/_fa4.py).
    {.name = "flash (FA4)", .most_bytes = 2, .widest = 256},
    {.name = "flash on the CPU",
     .most_bytes = kAny,
     .widest = kAny,
     .multiple = 1},
    {.name = "whole scores"}};

const KernelTraits& TraitsOf(AttentionKernel kernel) {
  return kTraits[static_cast<size_t>(kernel)];
}

bool TakesHeads(const KernelTraits& kernel, const AttentionBlock& b) {
  return b.head_dim <= kernel.widest && b.head_dim % kernel.multiple == 0;
}

bool Takes(const KernelTraits& kernel, const AttentionBlock& b) {
  return b.element_bytes >= 2 && b.element_bytes <= kernel.most_bytes &&
         TakesHeads(kernel, b) && b.value_dim == b.head_dim &&
         b.keys >= kernel.least_keys && (kernel.window || !b.window) &&
         !b.intervals && !b.softcap;
}

AttentionKernel FirstOf(std::initializer_list<AttentionKernel> kernels,
                        const AttentionBlock& block) {
  for (const AttentionKernel kernel : kernels) {
    if (Takes(TraitsOf(kernel), block)) return kernel;
  }
  return AttentionKernel::kScores;
}

}  // namespace

const char* Name(AttentionKernel kernel) { return TraitsOf(kernel).name; }

AttentionKernel KernelOf(const AttentionBlock& b) {
  using enum AttentionKernel;
  if (b.capability == kCpuCapability) return FirstOf({kCpuFlash}, b);
  switch (b.asked) {
    case kAuto:
      return b.capability == kHopper && !b.part
                 ? FirstOf({kCudnn, b.flash, kEfficient}, b)
                 : FirstOf({b.flash, kEfficient}, b);
    case kCudnn:
      return FirstOf({kCudnn, b.flash}, b);
    case kFlash:
      return FirstOf({b.flash}, b);
    default:
      return FirstOf({b.asked}, b);
  }
}

std::optional<std::string> Refusal(const AttentionBlock& b) {
  AttentionKernel kernel = b.asked;
  if (kernel == AttentionKernel::kAuto) {
    kernel = b.element_bytes > 2 ? AttentionKernel::kEfficient
                                 : AttentionKernel::kFlash;
  }
  const KernelTraits& traits = TraitsOf(kernel);
  if (b.element_bytes > traits.most_bytes) {
    return fmt::format(
        "{} takes at most {} bytes an element, and this model's have {}: "
        "compute in bf16, or take auto",
        traits.name, traits.most_bytes, b.element_bytes);
  }
  if (TakesHeads(traits, b)) return std::nullopt;
  return fmt::format(
      "{} takes heads of a multiple of {} and at most {}, and this model's "
      "have {}",
      traits.name, traits.multiple, traits.widest, b.head_dim);
}

}  // namespace sluice::stream
