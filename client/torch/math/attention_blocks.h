// One block of chunked attention: a chunk of queries against a chunk of keys,
// added to what earlier blocks left. The kernels are ATen's flash attention,
// which returns the log-sum-exp; its backward takes the *merged* output and
// log-sum-exp of the whole row, which is what makes block-wise backward exact.
//
// A causal block is cut in halves until they are small, and what lies above
// its diagonal is never computed. (ATen's CPU kernel would compute most of it:
// it goes through whole tiles of 512 keys, and an off-diagonal block of 512 x
// 512 costs as much as a causal one.)
//
// In bf16 the CPU's blocks are computed in fp32: their outputs would otherwise
// be rounded before they are merged, the known error of chunked attention
// (seen in k's bias of GPT, whose gradient is a sum that cancels).
//
// Tensors are in head layout: q, o, dO [q rows, q heads, dim], k, v
// [k rows, kv heads, dim] (q heads a multiple of kv heads), lse
// [q heads, q rows] fp32. Strides are free but for the last dimension. A
// causal block has as many rows of k as of q.
//
// Throws what ATen throws. Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::runtime {

// What a block does to a sum: begins it, whatever it holds, or adds to it.
enum class Sum { kBegin, kAdd };

// Attention of some queries over the keys seen so far.
struct RunningAttention {
  at::Tensor output;  // [q rows, q heads, dim], fp32
  at::Tensor lse;     // [q heads, q rows], fp32
};
// `running` := that of these keys (kBegin), or of these and the keys before
// (kAdd). Max-stabilised: a log-sum-exp of -inf (no key yet) or a difference
// of any size is fine.
void AttendBlock(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 bool causal, Sum sum, const RunningAttention& running);

// The queries of a block's backward: with the output and log-sum-exp of their
// whole rows.
struct QueryRows {
  at::Tensor q, output_gradient, output, lse;
};
struct GradientSums {
  at::Tensor q, k, v;  // shaped as q, k, v, fp32
};
// Adds the block's gradients to `sums`: dq as `query_sum` says, dk and dv as
// `key_sum` says.
void AttendBlockBackward(const QueryRows& queries, const at::Tensor& k,
                         const at::Tensor& v, bool causal, Sum query_sum,
                         Sum key_sum, const GradientSums& sums);

}  // namespace sluice::runtime
