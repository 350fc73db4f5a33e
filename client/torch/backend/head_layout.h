// Views of tensors in head layout, [rows, heads, dim], as attention's operators
// and kernels/ops take them. No copies.
#pragma once

#include "client/torch/backend/backend.h"
#include "kernels/ops/merge.h"

namespace sluice::runtime {

// Batched views [rows, heads, dim] as [1, heads, rows, dim]; Flat reverses it.
inline at::Tensor Batched(const at::Tensor& t) {
  return t.transpose(0, 1).unsqueeze(0);
}
inline at::Tensor Flat(const at::Tensor& t) {
  return t.squeeze(0).transpose(0, 1);
}

inline ops::MergeShape MergeShapeOf(const AttentionResult& running,
                                    const AttentionResult& block) {
  return {.rows = block.output.size(0),
          .heads = block.output.size(1),
          .dim = block.output.size(2),
          .o = {running.output.stride(0), running.output.stride(1)},
          .lse = {running.lse.stride(1), running.lse.stride(0)},
          .block_o = {block.output.stride(0), block.output.stride(1)},
          .block_lse = {block.lse.stride(1), block.lse.stride(0)}};
}

}  // namespace sluice::runtime
