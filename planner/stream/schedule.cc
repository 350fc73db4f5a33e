#include "planner/stream/schedule.h"

#include <algorithm>

namespace sluice::stream {
std::vector<Block> ForwardBlocks(const std::vector<int64_t>& chunks) {
  std::vector<Block> blocks;
  for (size_t j = 0; j < chunks.size(); ++j) {
    blocks.push_back({chunks[j], chunks[j]});
    for (size_t i = 0; i < j; ++i) blocks.push_back({chunks[i], chunks[j]});
  }
  return blocks;
}

std::vector<int64_t> OuterChunks(const std::vector<int64_t>& chunks,
                                 BackwardOrder order) {
  std::vector<int64_t> outer = chunks;
  if (order == BackwardOrder::kQueriesOuter) std::ranges::reverse(outer);
  return outer;
}

std::vector<Block> BackwardBlocks(const std::vector<int64_t>& chunks,
                                  BackwardOrder order) {
  const bool keys_outer = order == BackwardOrder::kKeysOuter;
  const std::vector<int64_t> outer = OuterChunks(chunks, order);
  std::vector<Block> blocks;
  for (size_t o = 0; o < outer.size(); ++o) {
    for (size_t n = o; n < outer.size(); ++n) {
      blocks.push_back(keys_outer ? Block{outer[o], outer[n]}
                                  : Block{outer[n], outer[o]});
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

// Bytes of blocks. Forward fetches the k and v of earlier chunks. Backward
// fetches the outer side once per chunk and the inner side once per block, and
// the inner side's sums go out and come in between two of its blocks. All
// chunks but the last are equal, so sums over blocks have a closed form.
struct BlockTraffic {
  int64_t forward = 0, outer = 0, inner = 0, sums = 0;
};

BlockTraffic CountBlocks(const StreamShape& shape) {
  const int64_t last = shape.chunks() - 1;
  const int64_t earlier = last * (last + 1) / 2;  // blocks, diagonal aside
  const auto keys = [&](int64_t m) {
    return shape.moved_bytes(Class::kK, m) + shape.moved_bytes(Class::kV, m);
  };
  const auto queries = [&](int64_t m) {
    return shape.moved_bytes(Class::kQ, m) +
           shape.moved_bytes(Class::kOutputGradient, m) +
           shape.moved_bytes(Class::kO, m) + shape.moved_bytes(Class::kLse, m);
  };
  BlockTraffic traffic{.forward = earlier * keys(0)};
  if (shape.order == BackwardOrder::kQueriesOuter) {
    // Every key chunk but the last, which is only on a diagonal, is a full one.
    traffic.outer = last * queries(0) + queries(last);
    traffic.inner = (earlier + last) * keys(0) + keys(last);
    traffic.sums = earlier * (shape.moved_bytes(Class::kKeyGradient, 0) +
                              shape.moved_bytes(Class::kValueGradient, 0));
    return traffic;
  }
  // Query chunk m has m + 1 blocks, m of them not its first.
  traffic.outer = last * keys(0) + keys(last);
  traffic.inner = earlier * queries(0) + (last + 1) * queries(last);
  traffic.sums =
      (earlier - last) * shape.moved_bytes(Class::kQueryGradient, 0) +
      last * shape.moved_bytes(Class::kQueryGradient, last);
  return traffic;
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
  traffic.forward = {.in = x + blocks.forward,
                     .out = x + kv + shape.swapped_bytes(Class::kQ) + o +
                            shape.moved_bytes(Class::kLse) + local};
  // Phase A fetches dY, x and o, phase C x and dX2; dO, dX2 and dX leave.
  traffic.tokens = {
      .in = 4 * x + o + local,
      .out = shape.moved_bytes(Class::kOutputGradient) + 2 * x + dropped};
  traffic.blocks = {.in = blocks.outer + blocks.inner + blocks.sums,
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
  traffic.forward = {.in = x + blocks.forward, .out = q + kv};
  // x comes twice and once with its class.
  traffic.tokens = {
      .in = 3 * x,
      .out = q + shape.moved_bytes(Class::kOutputGradient) + 2 * x + kv};
  // lse comes in only here, so once less than its class says.
  traffic.blocks = {.in = blocks.outer + blocks.inner + blocks.sums -
                          shape.moved_bytes(Class::kLse),
                    .out = blocks.sums};
  return traffic;
}

}  // namespace sluice::stream
