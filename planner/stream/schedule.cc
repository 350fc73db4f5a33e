#include "planner/stream/schedule.h"

namespace sluice::stream {
namespace {

constexpr bool TableIsInOrder() {
  for (int i = 0; i < kSegmentCount; ++i) {
    if (static_cast<int>(kSegments[i].which) != i) return false;
  }
  return true;
}
static_assert(TableIsInOrder());

}  // namespace

std::string KindOf(Segment which, bool full) {
  return std::string(Traits(which).name) + (full ? ".full" : ".tail");
}

std::vector<Block> ForwardBlocks(const std::vector<int64_t>& chunks) {
  std::vector<Block> blocks;
  for (size_t j = 0; j < chunks.size(); ++j) {
    blocks.push_back({chunks[j], chunks[j]});
    for (size_t i = 0; i < j; ++i) blocks.push_back({chunks[i], chunks[j]});
  }
  return blocks;
}

std::vector<Block> BackwardBlocks(const std::vector<int64_t>& chunks) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (size_t j = i; j < chunks.size(); ++j) {
      blocks.push_back({chunks[i], chunks[j]});
    }
  }
  return blocks;
}

// A block's kind is that of its query chunk, and no chunk is later than the
// tail: closed forms of what ForwardBlocks and BackwardBlocks enumerate.
Executions CountExecutions(const StreamShape& shape, Segment which) {
  const int64_t tail = shape.has_tail() ? 1 : 0;
  const int64_t full = shape.chunks() - tail;
  const bool pairs = which == Segment::kOffdiagonalForward ||
                     which == Segment::kOffdiagonalBackward;
  if (pairs) return {full * (full - 1) / 2, full * tail};
  return {full, tail};
}

LayerTraffic FixedTraffic(const StreamShape& shape) {
  const int64_t q = shape.class_bytes(Class::kQ);
  const int64_t kv = 2 * shape.class_bytes(Class::kK);
  const int64_t lse = shape.class_bytes(Class::kLse);
  const int64_t x = shape.class_bytes(Class::kInput);
  int64_t keys_again = 0, queries = 0, sums = 0;
  for (int64_t m = 0; m < shape.chunks(); ++m) {
    const int64_t later = shape.chunks() - 1 - m;
    keys_again += later * 2 * shape.chunk_bytes(Class::kK, m);
    queries += (m + 1) * (2 * shape.chunk_bytes(Class::kQ, m) +  // q, dO
                          shape.chunk_bytes(Class::kO, m) +
                          shape.chunk_bytes(Class::kLse, m));
    sums += m * shape.chunk_bytes(Class::kQueryGradient, m);
  }
  LayerTraffic traffic;
  // x comes; k and v leave, and q as if all of it stayed. Each later chunk
  // fetches k and v again.
  traffic.forward = {.in = x + keys_again, .out = q + kv};
  // dY for the FFN; x and dX2 for the projections. dO, dX2 and dX leave, and
  // q, k, v as if all of them were recomputed.
  traffic.tokens = {.in = 3 * x, .out = 2 * q + 2 * x + kv};
  // k and v once; a query chunk's q, o, lse and dO for each of its blocks, and
  // dq, out and in again, for all but its first. lse comes in only here, so
  // once less than the classes say.
  traffic.blocks = {.in = kv + queries + sums - lse, .out = sums};
  return traffic;
}

}  // namespace sluice::stream
