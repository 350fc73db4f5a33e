// What a streamed step runs, and in which order: the blocks of attention with
// their masks, how often each segment runs, and the bytes that a layer copies.
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

// Blocks in the order they run. Forward has queries outer, each row up to its
// diagonal. Backward begins each outer chunk at its diagonal. It takes outer
// chunks in the order (OuterChunks) that makes that diagonal the last block to
// add to the inner side's gradients, so all three gradients of a chunk are
// complete when its turn as the outer one ends.
std::vector<Block> ForwardBlocks(const std::vector<int64_t>& chunks);
std::vector<Block> BackwardBlocks(const std::vector<int64_t>& chunks,
                                  BackwardOrder order);
std::vector<int64_t> OuterChunks(const std::vector<int64_t>& chunks,
                                 BackwardOrder order);

// How often one layer (for Part::kStep: one step) runs each kind.
struct Executions {
  int64_t full = 0, tail = 0;
};
Executions CountExecutions(const StreamShape& shape, Segment which);
// Returns the executions that a step adds to forward's kinds for chunks that
// run again.
Executions CountRerun(const StreamShape& shape, Segment which);

// Bytes over the link to host memory, in each direction.
struct Traffic {
  int64_t in = 0, out = 0;
};
// Traffic of one layer: its forward, and backward's two phases, token-local
// work (post.backward, qkv.backward) and blocks of attention. If chunks run
// again, `forward` is that of a layer that reruns, and `rerun` is the mean over
// all layers.
struct LayerTraffic {
  Traffic forward, rerun, tokens, blocks;
};
// Returns a layer's traffic with the fractions of `shape`.
LayerTraffic CountTraffic(const StreamShape& shape);
// Returns the part of CountTraffic that does not depend on fractions; in
// addition, the swapped rows of each class are sent and fetched once. q, k and
// v count here as if all rows were both stored and recomputed: all of k and v
// are copied, and at most all of q.
LayerTraffic FixedTraffic(const StreamShape& shape);

// Returns the bytes that one layer's attention blocks copy in backward, both
// ways.
int64_t BlockBytes(StreamOptions options, BackwardOrder order);
// Returns the order with the fewest such bytes, keys outer on ties.
BackwardOrder OrderOfLeastBytes(const StreamOptions& options);

}  // namespace sluice::stream
