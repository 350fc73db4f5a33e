#include "planner/stream/schedule.h"

#include <algorithm>
#include <initializer_list>

namespace sluice::stream {
namespace {

// Counts a segment's executions in closed form: one per chunk, or one per block
// off the diagonal. A block with the tail's queries counts as the tail's. No
// block off the diagonal has the tail's keys.
Executions OfChunks(int64_t full, int64_t tail, Segment which) {
  const bool pairs = which == Segment::kOffdiagonalForward ||
                     which == Segment::kOffdiagonalBackward;
  if (pairs) return {full * (full - 1) / 2, full * tail};
  return {full, tail};
}

// Bytes that attention's blocks copy. Forward fetches the k and v of earlier
// chunks; backward the outer side once per chunk and the inner side once per
// block. The inner side's sums are sent and fetched between two of its blocks.
struct BlockTraffic {
  int64_t forward = 0, outer = 0, inner = 0, sums = 0;
};

// Returns the sum over chunks of times(m) * bytes_of(m). times must be linear.
int64_t SumTimes(const StreamShape& shape, auto times, auto bytes_of) {
  int64_t sum = 0;
  for (const auto& [first, end] : shape.runs()) {
    sum +=
        (end - first) * (times(first) + times(end - 1)) / 2 * bytes_of(first);
  }
  return sum;
}

BlockTraffic CountBlocks(const StreamShape& shape) {
  const int64_t last = shape.chunks() - 1;
  const auto before = [](int64_t m) { return m; };
  const auto after = [last](int64_t m) { return last - m; };
  const auto keys = [&](int64_t m) { return shape.moved_bytes(kKeyPair, m); };
  const auto queries = [&](int64_t m) {
    return shape.moved_bytes(kQuerySide, m);
  };
  const auto sums = [&](int64_t m) { return shape.moved_bytes(kSums, m); };
  // In addition to its diagonal, a chunk has a block with each later (or
  // earlier) chunk. Its first block fetches no sums.
  BlockTraffic traffic{.forward = SumTimes(shape, after, keys)};
  if (shape.order == BackwardOrder::kQueriesOuter) {
    traffic.outer = shape.SumOverChunks(queries);
    traffic.inner = shape.SumOverChunks(keys) + traffic.forward;
    traffic.sums = SumTimes(shape, after, sums);
    return traffic;
  }
  traffic.outer = shape.SumOverChunks(keys);
  traffic.inner =
      shape.SumOverChunks(queries) + SumTimes(shape, before, queries);
  traffic.sums = SumTimes(shape, before, sums);
  return traffic;
}

// Returns the bytes of the classes in the chunks that run again.
int64_t OfRerun(const StreamShape& shape,
                std::initializer_list<Class> classes) {
  return shape.SumOverChunks([&](int64_t m) {
    return shape.reruns(m) ? shape.moved_bytes(classes, m) : 0;
  });
}

// Returns the traffic of reruns over all layers. x and earlier k and v are
// fetched; k, v, o and lse are sent. A group's last layer also sends q, for its
// backward; the other layers send their output.
Traffic CountRerunTraffic(const StreamShape& shape) {
  const int64_t chunks = shape.rerun_chunks, layers = shape.layers_rerun();
  const int64_t groups = layers / shape.rerun_layers;
  const int64_t keys = shape.moved_bytes(kKeyPair, 0);
  const int64_t x = OfRerun(shape, {Class::kInput});
  const int64_t out =
      OfRerun(shape, {Class::kK, Class::kV, Class::kO, Class::kLse});
  return {.in = layers * (x + chunks * (chunks - 1) / 2 * keys),
          .out = layers * out + (layers - groups) * x +
                 groups * OfRerun(shape, {Class::kQ})};
}

}  // namespace

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

Executions CountExecutions(const StreamShape& shape, Segment which) {
  const int64_t tail = shape.has_tail() ? 1 : 0;
  const int64_t full = shape.chunks() - tail;
  if (which == Segment::kLoss) {
    const int64_t group = shape.loss.chunks;
    const int64_t groups = (shape.chunks() + group - 1) / group;
    return {full / group, groups - full / group};
  }
  return OfChunks(full, tail, which);
}

Executions CountRerun(const StreamShape& shape, Segment which) {
  if (Traits(which).part != Part::kForward) return {};
  const int64_t layers = shape.layers_rerun();
  const int64_t times = which == Segment::kPostForward
                            ? layers - layers / shape.rerun_layers
                            : layers;
  const int64_t chunks = shape.rerun_chunks;
  const int64_t tail = chunks == shape.chunks() && shape.has_tail() ? 1 : 0;
  const Executions once = OfChunks(chunks - tail, tail, which);
  return {times * once.full, times * once.tail};
}

LayerTraffic CountTraffic(const StreamShape& shape) {
  const BlockTraffic blocks = CountBlocks(shape);
  const int64_t x = shape.moved_bytes(Class::kInput);
  const int64_t kv = shape.moved_bytes(kKeyPair);
  const int64_t o = shape.moved_bytes(Class::kO);
  const auto swapped = [&](Class which) { return shape.swapped_bytes(which); };
  const int64_t local = swapped(Class::kNorm1) + Sum(kPostClasses, swapped);
  const int64_t dropped =
      shape.moved_bytes(kHeadClasses) - Sum(kHeadClasses, swapped);
  const Traffic rerun = CountRerunTraffic(shape);
  LayerTraffic traffic;
  traffic.rerun = {rerun.in / shape.layers, rerun.out / shape.layers};
  // The layer's input is fetched, and its output is sent.
  traffic.forward = {.in = x + blocks.forward,
                     .out = x + kv + shape.swapped_bytes(Class::kQ) + o +
                            shape.moved_bytes(Class::kLse) -
                            OfRerun(shape, {Class::kO, Class::kLse}) + local};
  // Before the blocks dY, x and o are fetched, after them x and dX2. dO, dX2
  // and dX are sent.
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
  const int64_t kv = shape.moved_bytes(kKeyPair);
  const int64_t x = shape.moved_bytes(Class::kInput);
  // A layer's own classes do not include chunks that run again.
  const int64_t again = OfRerun(shape, {Class::kInput});
  LayerTraffic traffic;
  traffic.rerun = CountTraffic(shape).rerun;
  traffic.forward = {.in = x + blocks.forward, .out = q + kv + again};
  // CountTraffic fetches four hidden states here. x's class counts one of them.
  traffic.tokens = {
      .in = 3 * x + again + OfRerun(shape, {Class::kO}),
      .out = q + shape.moved_bytes(Class::kOutputGradient) + 2 * x + kv};
  // lse is fetched only by blocks, so its class counts it once too often.
  traffic.blocks = {.in = blocks.outer + blocks.inner + blocks.sums -
                          shape.moved_bytes(Class::kLse) +
                          OfRerun(shape, {Class::kLse}),
                    .out = blocks.sums};
  return traffic;
}

int64_t BlockBytes(StreamOptions options, BackwardOrder order) {
  options.order = order;
  const Traffic blocks = CountTraffic(StreamShape(options)).blocks;
  return blocks.in + blocks.out;
}

BackwardOrder OrderOfLeastBytes(const StreamOptions& options) {
  using enum BackwardOrder;
  return BlockBytes(options, kQueriesOuter) < BlockBytes(options, kKeysOuter)
             ? kQueriesOuter
             : kKeysOuter;
}

}  // namespace sluice::stream
