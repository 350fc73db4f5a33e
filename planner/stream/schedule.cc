#include "planner/stream/schedule.h"

namespace sluice::stream {
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
  if (which == Segment::kLoss) {
    const int64_t group = shape.loss.chunks;
    const int64_t groups = (shape.chunks() + group - 1) / group;
    return {full / group, groups - full / group};
  }
  return {full, tail};
}

namespace {

// Bytes of blocks: what forward fetches of earlier chunks' k and v; what
// backward fetches for query chunks, and their sums on the way out and in. All
// chunks but the last are equal, so sums over blocks have a closed form.
struct BlockTraffic {
  int64_t keys = 0, queries = 0, sums = 0;
};

BlockTraffic CountBlocks(const StreamShape& shape) {
  const int64_t last = shape.chunks() - 1;
  const int64_t earlier = last * (last + 1) / 2;  // blocks, diagonal aside
  const auto query_row = [&](int64_t m) {
    return shape.moved_bytes(Class::kQ, m) +
           shape.moved_bytes(Class::kOutputGradient, m) +
           shape.moved_bytes(Class::kO, m) + shape.moved_bytes(Class::kLse, m);
  };
  // Query chunk m has m + 1 blocks, m of them not its first.
  return {
      .keys = earlier * (shape.moved_bytes(Class::kK, 0) +
                         shape.moved_bytes(Class::kV, 0)),
      .queries = earlier * query_row(0) + (last + 1) * query_row(last),
      .sums = (earlier - last) * shape.moved_bytes(Class::kQueryGradient, 0) +
              last * shape.moved_bytes(Class::kQueryGradient, last)};
}

}  // namespace

LayerTraffic CountTraffic(const StreamShape& shape) {
  const BlockTraffic blocks = CountBlocks(shape);
  const int64_t x = shape.moved_bytes(Class::kInput);
  const int64_t kv =
      shape.moved_bytes(Class::kK) + shape.moved_bytes(Class::kV);
  const int64_t o = shape.moved_bytes(Class::kO);
  int64_t local = shape.swapped_bytes(Class::kNorm1);
  for (const Class which : kPostClasses) local += shape.swapped_bytes(which);
  int64_t dropped = 0;
  for (const Class which : kHeadClasses) {
    dropped += shape.moved_bytes(which) - shape.swapped_bytes(which);
  }
  LayerTraffic traffic;
  // The layer's input comes, its output leaves.
  traffic.forward = {.in = x + blocks.keys,
                     .out = x + kv + shape.swapped_bytes(Class::kQ) + o +
                            shape.moved_bytes(Class::kLse) + local};
  // Phase A fetches dY, x and o, phase C x and dX2; dO, dX2 and dX leave.
  traffic.tokens = {
      .in = 4 * x + o + local,
      .out = shape.moved_bytes(Class::kOutputGradient) + 2 * x + dropped};
  traffic.blocks = {.in = kv + blocks.queries + blocks.sums,
                    .out = blocks.sums};
  return traffic;
}

LayerTraffic FixedTraffic(const StreamShape& shape) {
  const BlockTraffic blocks = CountBlocks(shape);
  const int64_t q = shape.moved_bytes(Class::kQ);
  const int64_t kv =
      shape.moved_bytes(Class::kK) + shape.moved_bytes(Class::kV);
  const int64_t x = shape.moved_bytes(Class::kInput);
  LayerTraffic traffic;
  traffic.forward = {.in = x + blocks.keys, .out = q + kv};
  // x comes twice and once with its class.
  traffic.tokens = {
      .in = 3 * x,
      .out = q + shape.moved_bytes(Class::kOutputGradient) + 2 * x + kv};
  // lse comes in only here, so once less than its class says.
  traffic.blocks = {
      .in = kv + blocks.queries + blocks.sums - shape.moved_bytes(Class::kLse),
      .out = blocks.sums};
  return traffic;
}

}  // namespace sluice::stream
