// One block of chunked attention: a chunk of queries against a chunk of keys.
// The kernels are ATen's flash attention, which returns the log-sum-exp; its
// backward takes the *merged* output and log-sum-exp of the whole row, which
// is what makes block-wise backward exact.
//
// Tensors are in head layout: q, o, dO [q rows, q heads, dim], k, v
// [k rows, kv heads, dim] (q heads a multiple of kv heads), lse
// [q heads, q rows] fp32. Strides are free but for the last dimension.
//
// Throws what ATen throws. Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::runtime {

struct BlockOutput {
  at::Tensor output;  // [q rows, q heads, dim], in q's dtype
  at::Tensor lse;     // [q heads, q rows], fp32
};
BlockOutput AttendBlock(const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, bool causal);

// output (fp32), lse := those of the union of two key sets. Max-stabilised:
// a log-sum-exp of -inf (no key yet) or a difference of any size is fine.
void MergeBlock(at::Tensor& output, at::Tensor& lse, const BlockOutput& block);

struct BlockGradients {
  at::Tensor q, k, v;  // shaped as q, k, v, in their dtype
};
BlockGradients AttendBlockBackward(const at::Tensor& output_gradient,
                                   const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v,
                                   const at::Tensor& merged_output,
                                   const at::Tensor& merged_lse, bool causal);

}  // namespace sluice::runtime
