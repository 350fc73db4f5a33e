// The calls of a GPU's attention kernels, in the words of backend.h: each
// operator's layouts, seeds and dtypes are known here alone.
//
// An operator takes the output and the gradient in the dtype of q, so what is
// wider is rounded.
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

// REQUIRES: kFlash, kEfficient or kCudnn.
KernelCalls CallsOf(stream::AttentionKernel kernel);

}  // namespace sluice::runtime
