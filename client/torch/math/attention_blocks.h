// Computes one block of chunked attention: a chunk of queries against a chunk
// of keys, added to the result of earlier blocks. Backward takes the *merged*
// output and log-sum-exp of the whole row, which makes it exact block by block.
//
// Where a device's causal blocks must be small (Backend::Traits::causal_rows),
// a block is cut in halves, and the part above its diagonal is not computed.
//
// In bf16 the CPU's blocks are computed in fp32. Else they would be rounded
// before they are merged, the known error of chunked attention: it shows in the
// gradient of GPT's k bias, a sum of terms that cancel.
//
// Tensors are in head layout: q, o, dO [q rows, q heads, dim], k, v [k rows, kv
// heads, dim] (q heads a multiple of kv heads), lse [q heads, q rows] fp32.
// Strides are free except for the last dimension. The queries of a causal block
// are at the positions of the last rows of its keys; the keys before these rows
// form a block without a mask. The number of queries may be 0.
//
// Throws what ATen throws, and StatusException on a device without attention.
// Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include "client/torch/backend/backend.h"

namespace sluice::runtime {

// Whether a block overwrites a sum (kBegin) or adds to it.
enum class Sum { kBegin, kAdd };

// The attention of some queries over the keys so far, output and lse in fp32.
using RunningAttention = AttentionResult;
// Sets `running` (kBegin), or merges this block into it (kAdd). The merge
// subtracts the maximum, so log-sum-exps may be -inf (no key yet) or far apart.
void AttendBlock(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 bool causal, Sum sum, const RunningAttention& running);

using GradientSums = AttentionGradients;  // fp32
// Writes the block's gradients to `sums`, or adds them: dq as `query_sum` says,
// dk and dv as `key_sum` says.
void AttendBlockBackward(const QueryRows& queries, const at::Tensor& k,
                         const at::Tensor& v, bool causal, Sum query_sum,
                         Sum key_sum, const GradientSums& sums);

}  // namespace sluice::runtime
