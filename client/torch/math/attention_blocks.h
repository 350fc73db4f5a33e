// One block of chunked attention: a chunk of queries against a chunk of keys.
// The kernels are ATen's flash attention, which returns the log-sum-exp; its
// backward takes the *merged* output and log-sum-exp of the whole row, which
// is what makes block-wise backward exact.
//
// In bf16 the CPU's blocks are computed in fp32: their outputs would otherwise
// be rounded before they are merged, the known error of chunked attention
// (seen in k's bias of GPT, whose gradient is a sum that cancels).
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
  at::Tensor output;  // [q rows, q heads, dim], fp32
  at::Tensor lse;     // [q heads, q rows], fp32
};
BlockOutput AttendBlock(const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, bool causal);

// output (fp32), lse := those of the union of two key sets. Max-stabilised:
// a log-sum-exp of -inf (no key yet) or a difference of any size is fine.
void MergeBlock(at::Tensor& output, at::Tensor& lse, const BlockOutput& block);

struct BlockGradients {
  at::Tensor q, k, v;  // shaped as q, k, v, fp32
};
BlockGradients AttendBlockBackward(const at::Tensor& output_gradient,
                                   const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v,
                                   const at::Tensor& merged_output,
                                   const at::Tensor& merged_lse, bool causal);

}  // namespace sluice::runtime
