// Merging attention computed block by block (FPDT section 3.2; the online
// softmax of Milakov and Gimelshein).
//
// Attention of the same q rows over two disjoint sets of keys gives (o_a,
// lse_a) and (o_b, lse_b). Over both sets together the result is
//
//   m   = max(lse_a, lse_b)
//   o   = (exp(lse_a - m) o_a + exp(lse_b - m) o_b) / (sum of both weights)
//   lse = m + log(sum of both weights)
//
// which never overflows. A row with lse = -inf attended to nothing: its o is
// ignored, whatever it holds (NaN too), so running values may start as o
// uninitialised and lse -inf. If both lse are -inf, o becomes 0 and lse stays
// -inf.
//
// Kernels take raw pointers; no torch header may be included here. Tensors have
// any strides, so a caller need not copy them first.
//
// Accuracy: fp32, a few units in the last place per merge.
// Thread safety: pure functions of their arguments; a call uses one thread.
#pragma once

#include <cstdint>

#include "kernels/ops/element.h"

namespace sluice::ops {

// Strides count elements, not bytes.
struct RowHeadStrides {
  int64_t row = 0;
  int64_t head = 0;
};

// o and block_o are [rows, heads, dim] with contiguous dim. lse and block_lse
// are [rows, heads] in fp32, as natural logarithms. Rows and heads may have any
// strides: ATen's CPU flash attention returns lse as a transposed view.
struct MergeShape {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  RowHeadStrides o, lse, block_o, block_lse;
};

// Merges (block_o, block_lse) into (o, lse). The two must not overlap. Does
// nothing if any extent is 0.
void MergeAttention(const MergeShape& shape, float* o, float* lse,
                    const float* block_o, const float* block_lse);
void MergeAttention(const MergeShape& shape, float* o, float* lse,
                    const BFloat16* block_o, const float* block_lse);

}  // namespace sluice::ops
