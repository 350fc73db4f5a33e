#include "planner/stream/transients.h"

#include <algorithm>

namespace sluice::stream {
namespace {

// A block's backward: copies of q, k, v, o, dO in fp32, and gradients.
int64_t BlockBackward(const StreamShape& shape) {
  return 4 * shape.rows(0) * shape.dim * 4 * (shape.q_heads + shape.kv_heads);
}

// The FFN's backward, some rows at a time: its wide tensors and their
// gradients, beside hidden states of the chunk.
int64_t FfnBackward(const StreamShape& shape) {
  const int64_t wide = (shape.gated ? 3 : 2) * shape.ffn;
  return 2 * shape.ffn_rows * wide * shape.element +
         4 * shape.chunk_bytes(Class::kInput, 0);
}

// Logits: in the activation's type, in fp32, and their gradient.
int64_t Loss(const StreamShape& shape) {
  return shape.loss.rows * shape.vocab * (shape.element + 4 + 4);
}

}  // namespace

int64_t TransientBytes(const StreamShape& shape, Segment which) {
  switch (which) {
    case Segment::kDiagonalBackward:
    case Segment::kOffdiagonalBackward:
      return BlockBackward(shape);
    case Segment::kPostBackward:
      return FfnBackward(shape);
    case Segment::kLoss:
      return Loss(shape);
    default:
      return 0;  // smaller than those
  }
}

int64_t TransientBytes(const StreamShape& shape) {
  int64_t most = 0;
  for (const SegmentTraits& segment : kSegments) {
    most = std::max(most, TransientBytes(shape, segment.which));
  }
  return most;
}

}  // namespace sluice::stream
