// One block of chunked attention: a chunk of queries against a chunk of keys,
// added to what earlier blocks left. The kernels are those of the tensors'
// device (backend.h). Attention returns the log-sum-exp; its backward takes the
// *merged* output and log-sum-exp of the whole row, which is what makes
// block-wise backward exact.
//
// Where the device wants it (the CPU: Backend::Traits::causal_rows), a causal
// block is cut in halves until they are small, and what lies above its diagonal
// is never computed. (ATen's CPU kernel would compute most of it: it goes
// through whole tiles of 512 keys, and an off-diagonal block of 512 x 512 costs
// as much as a causal one.)
//
// In bf16 the CPU's blocks are computed in fp32: their outputs would otherwise
// be rounded before they are merged, the known error of chunked attention
// (seen in the gradient of GPT's k bias, a sum that cancels).
//
// Tensors are in head layout: q, o, dO [q rows, q heads, dim], k, v
// [k rows, kv heads, dim] (q heads a multiple of kv heads), lse
// [q heads, q rows] fp32. Strides are free but for the last dimension. A
// causal block's queries are the last of its keys' rows: what lies before them
// is a block without a mask. There may be no query.
//
// Throws what ATen throws, and StatusException on a device without attention.
// Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include "client/torch/backend/backend.h"

namespace sluice::runtime {

// What a block does to a sum: begins it, whatever it holds, or adds to it.
enum class Sum { kBegin, kAdd };

// Attention of some queries over the keys seen so far, both in fp32.
using RunningAttention = AttentionResult;
// `running` := that of these keys (kBegin), or of these and the keys before
// (kAdd). Max-stabilised: a log-sum-exp of -inf (no key yet) or a difference
// of any size is fine.
void AttendBlock(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 bool causal, Sum sum, const RunningAttention& running);

using GradientSums = AttentionGradients;  // fp32
// Adds the block's gradients to `sums`: dq as `query_sum` says, dk and dv as
// `key_sum` says.
void AttendBlockBackward(const QueryRows& queries, const at::Tensor& k,
                         const at::Tensor& v, bool causal, Sum query_sum,
                         Sum key_sum, const GradientSums& sums);

}  // namespace sluice::runtime
