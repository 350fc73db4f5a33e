// Which kernel computes a block of attention: one table of kernels and one
// rule, for sluice-train and, over the C ABI, for the Python package.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::stream {

// kFa3, kFa4: what torch's flash operators run where the user has activated it.
// kScores: no kernel; the block's scores are written out.
enum class AttentionKernel {
  kAuto,
  kFlash,
  kEfficient,
  kCudnn,
  kFa3,
  kFa4,
  kCpuFlash,
  kScores
};
// Those that a run may ask for.
inline constexpr AttentionKernel kAskedKernels[] = {
    AttentionKernel::kAuto, AttentionKernel::kFlash,
    AttentionKernel::kEfficient, AttentionKernel::kCudnn};

// "auto", "flash", "efficient", "cudnn", "flash (FA3)", "flash (FA4)",
// "flash on the CPU", "whole scores"
const char* Name(AttentionKernel kernel);

inline constexpr int kCpuCapability = -1;

struct AttentionBlock {
  AttentionKernel asked = AttentionKernel::kAuto;
  AttentionKernel flash = AttentionKernel::kFlash;  // or kFa3, kFa4
  // Compute capability, as DeviceInfo's. 0: not known yet.
  int capability = 0;
  int64_t element_bytes = 0;  // of q, k and v; 0: they differ
  int64_t head_dim = 0;       // of q and k
  int64_t value_dim = 0;      // of v
  int64_t keys = 2;
  bool part = false;       // of a block that documents cut: seldom seen again
  bool window = false;     // each row sees a window of keys
  bool intervals = false;  // each row sees an interval of its own
  bool softcap = false;    // scores are capped
};

// The kernel that computes `block`, never kAuto. Auto takes cuDNN's for bf16
// and fp16 on compute capability 9.0: on an H100, over 65,536 rows of 16 heads
// of 128, it had 741 and 639 TFLOP/s forward and back, torch's flash 376 and
// 335 (`verify --python`, deploy/bundle/measured). No other GPU was measured,
// so others take flash. So do parts of blocks: cuDNN builds a plan for each new
// shape, and documents make new shapes in each step. fp32 takes efficient.
AttentionKernel KernelOf(const AttentionBlock& block);

// Which dtype or heads the kernel that was asked for does not take, with its
// name in front ("cudnn takes …"); nullopt if it takes them.
std::optional<std::string> Refusal(const AttentionBlock& block);

}  // namespace sluice::stream
