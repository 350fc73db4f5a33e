// Which of a GPU's attention kernels a run takes, and what each can compute.
// Rules alone: nothing here calls one.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/stream/options.h"

namespace sluice::runtime {

// Auto: efficient for fp32. For bf16 cuDNN's on GPUs of compute capability 9.0,
// where it takes the heads: on an H100, over 65,536 rows of 16 heads of 128, it
// had 741 and 639 TFLOP/s forward and back, torch's flash 376 and 335
// (`verify --python`, deploy/bundle/measured). Else flash: no other GPU was
// asked.
enum class AttentionKernel { kAuto, kFlash, kEfficient, kCudnn };

// "auto", "flash", "efficient", "cudnn"
const char* Name(AttentionKernel kernel);

// The one that computes: never kAuto. `capability`: of the GPU, as
// DeviceInfo's; 0: not known yet.
AttentionKernel KernelOf(AttentionKernel asked, stream::Dtype dtype,
                         int64_t head_dim, int capability);

// What `asked` cannot do, to be put behind its name ("takes bf16 alone, …");
// none: it computes that.
std::optional<std::string> Refusal(AttentionKernel asked, stream::Dtype dtype,
                                   int64_t head_dim);

}  // namespace sluice::runtime
