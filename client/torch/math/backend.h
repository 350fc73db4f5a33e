// Which attention and which merge a device has: the one place that knows. All
// other math is ATen's operators, which every device has.
//
// Tensors are in head layout, [rows, heads, dim], lse [heads, rows] in fp32
// (attention_blocks.h); strides are free but for the last dimension. All of a
// call are on the backend's device.
//
// Throws what ATen throws. Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace sluice::runtime {

// Softmax of some queries over some keys, and its log-sum-exp.
struct AttentionResult {
  at::Tensor output, lse;
};

// The queries of a block's backward: with the output and log-sum-exp of their
// whole rows.
struct QueryRows {
  at::Tensor q, output_gradient, output, lse;
};
// Those of attention's inputs, shaped as they are.
struct AttentionGradients {
  at::Tensor q, k, v;
};

struct Backend {
  const char* name;
  // Blocks are computed in fp32 whatever the model's dtype: the attention of
  // this device would round a bf16 block's output before it is merged.
  bool blocks_in_fp32;
  // A causal block of more rows is cut in halves, whole tiles of so many rows,
  // because the device would compute most of what lies above the diagonal; 0:
  // it does not.
  int64_t causal_rows, tile_rows;

  // Autograd may go through it. Causal: as many rows of k as of q.
  AttentionResult (*attend)(const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, bool causal);
  AttentionGradients (*attend_backward)(const QueryRows& queries,
                                        const at::Tensor& k,
                                        const at::Tensor& v, bool causal);
  // (output, lse) becomes the merge of itself and `block` (kernels/ops/merge);
  // all in fp32.
  void (*merge)(const AttentionResult& running, const AttentionResult& block);
};

// Unimplemented: this build has no attention on such a device, in one line.
absl::StatusOr<const Backend*> FindBackend(at::Device device);
// The same where only throwing is possible (StatusException): of the device
// that a call's tensors are on.
const Backend& BackendOf(const at::Tensor& tensor);

}  // namespace sluice::runtime
