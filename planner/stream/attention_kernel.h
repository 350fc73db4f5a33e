// Selects the kernel that computes a block of attention, for sluice-train and
// (over the C ABI) the Python package.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::stream {

// kFa3 and kFa4 run in torch's flash operators if the user has activated them.
// kScores means eager attention: the block's scores are materialised.
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
// The kernels that a user may request.
inline constexpr AttentionKernel kAskedKernels[] = {
    AttentionKernel::kAuto, AttentionKernel::kFlash,
    AttentionKernel::kEfficient, AttentionKernel::kCudnn};

const char* Name(AttentionKernel kernel);  // "auto", "flash (FA3)", …

inline constexpr int kCpuCapability = -1;

struct AttentionBlock {
  AttentionKernel asked = AttentionKernel::kAuto;
  // What torch's flash operators run: kFlash, kFa3 or kFa4.
  AttentionKernel flash = AttentionKernel::kFlash;
  // Compute capability, 90 for 9.0; kCpuCapability; or 0 if not known yet.
  int capability = 0;
  // Bytes of an element of q, k and v; 0 if they differ.
  int64_t element_bytes = 0;
  int64_t head_dim = 0;   // of q and k
  int64_t value_dim = 0;  // of v
  int64_t keys = 2;
  // The block is cut at the borders of documents, so its shape seldom repeats.
  bool part = false;
  bool window = false;     // each row sees a window of keys
  bool intervals = false;  // each row sees its own interval of keys
  bool softcap = false;    // scores are capped
};

// Returns the kernel that computes `block`, never kAuto. kAuto selects cuDNN
// for bf16 and fp16 on compute capability 9.0: on an H100, with 65,536 rows of
// 16 heads of 128, cuDNN reaches 741 TFLOP/s forward and 639 backward, torch's
// flash 376 and 335 (`verify --python`, deploy/bundle/measured). Other GPUs
// were not measured and use flash. Blocks with `part` also use flash, because
// cuDNN builds a plan for each new shape, and documents make new shapes in each
// step. fp32 uses kEfficient.
AttentionKernel KernelOf(const AttentionBlock& block);

// Returns why the requested kernel cannot compute the block, by its dtype or
// head width ("cudnn takes …"), or nullopt if it can.
std::optional<std::string> Refusal(const AttentionBlock& block);

}  // namespace sluice::stream
