// Calls a GPU's attention kernels in the terms of backend.h: only this file
// knows each operator's layouts, seeds and dtypes.
//
// An operator takes the output and its gradient in the dtype of q, so wider
// tensors are rounded.
//
// Throws what ATen throws. Thread safety: pure functions.
#pragma once

#include "client/torch/backend/backend.h"
#include "planner/stream/attention_kernel.h"

namespace sluice::runtime {

struct KernelCalls {
  AttentionResult (*attend)(const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, bool causal);
  AttentionGradients (*attend_backward)(const QueryRows& queries,
                                        const at::Tensor& k,
                                        const at::Tensor& v, bool causal);
};

// Returns the calls of a kernel. REQUIRES: kFlash, kEfficient or kCudnn.
KernelCalls CallsOf(stream::AttentionKernel kernel);

}  // namespace sluice::runtime
