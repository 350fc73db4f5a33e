// What a streamed step runs and in which order: the blocks of attention with
// their masks, how often each segment runs, and the bytes that a layer moves.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stream/segments.h"
#include "planner/stream/stream_shape.h"

namespace sluice::stream {

// Key chunk i against query chunk j >= i. A diagonal block is causal; in the
// others every row sees every key.
enum class Mask { kCausal, kNone };
struct Block {
  int64_t i, j;
  constexpr Mask mask() const { return i == j ? Mask::kCausal : Mask::kNone; }
  bool operator==(const Block&) const = default;
};

// In the order they run: forward with queries outer, each row up to its
// diagonal. Backward begins each outer chunk at its diagonal, and takes outer
// chunks in the order (OuterChunks) in which that diagonal is the last block
// that adds to the inner side's gradients: all three gradients of a chunk are
// whole when its turn as the outer one ends.
std::vector<Block> ForwardBlocks(const std::vector<int64_t>& chunks);
std::vector<Block> BackwardBlocks(const std::vector<int64_t>& chunks,
                                  BackwardOrder order);
std::vector<int64_t> OuterChunks(const std::vector<int64_t>& chunks,
                                 BackwardOrder order);

// How often one layer (of Part::kStep: one step) runs each kind.
struct Executions {
  int64_t full = 0, tail = 0;
};
Executions CountExecutions(const StreamShape& shape, Segment which);
// What a step adds to forward's kinds where chunks run again.
Executions CountRerun(const StreamShape& shape, Segment which);

// Bytes over the link to host memory, each way.
struct Traffic {
  int64_t in = 0, out = 0;
};
// The traffic of one layer: its forward, and backward's two phases, token-local
// work (post.backward, qkv.backward) and blocks of attention. Where chunks run
// again, `forward` is that of a layer that reruns, and `rerun` the mean over
// all layers.
struct LayerTraffic {
  Traffic forward, rerun, tokens, blocks;
};
// What a layer moves with the fractions that `shape` has.
LayerTraffic CountTraffic(const StreamShape& shape);
// The part of CountTraffic that no choice of fractions changes; beside it the
// swapped rows of each class travel out and in once. q, k and v count here as
// if all rows were stored and all were recomputed: all of k and v travel, and
// at most all of q.
LayerTraffic FixedTraffic(const StreamShape& shape);

// Bytes that one layer's blocks of attention move in backward, both ways.
int64_t BlockBytes(StreamOptions options, BackwardOrder order);
// The order in which that is less; keys outer where both move as much.
BackwardOrder OrderOfLeastBytes(const StreamOptions& options);

}  // namespace sluice::stream
