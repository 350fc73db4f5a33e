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

// Auto: efficient for fp32, else flash. Nobody has measured them on a GPU for
// us; cuDNN's is published as 1.7 to 2.3 times as fast as torch's flash on
// Hopper, and was never run by us, so it has to be asked for.
enum class AttentionKernel { kAuto, kFlash, kEfficient, kCudnn };

// "auto", "flash", "efficient", "cudnn"
const char* Name(AttentionKernel kernel);

// The one that computes: never kAuto.
AttentionKernel KernelOf(AttentionKernel asked, stream::Dtype dtype);

// What `asked` cannot do, to be put behind its name ("takes bf16 alone, …");
// none: it computes that.
std::optional<std::string> Refusal(AttentionKernel asked, stream::Dtype dtype,
                                   int64_t head_dim);

}  // namespace sluice::runtime
