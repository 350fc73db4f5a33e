// Computes which blocks of attention a streamed step runs, in which order and
// with which masks; how often each segment runs; and the bytes that a layer
// copies.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stream/segments.h"
#include "planner/stream/stream_shape.h"

namespace sluice::stream {

// A block of attention: key chunk i with query chunk j >= i. A diagonal block
// (i = j) is causal; in the others every row sees every key.
enum class Mask { kCausal, kNone };
struct Block {
  int64_t i, j;
  constexpr Mask mask() const { return i == j ? Mask::kCausal : Mask::kNone; }
  bool operator==(const Block&) const = default;
};

// Return the blocks in the order in which they run. Forward has queries outer,
// and each row of blocks begins with its diagonal. Backward begins each outer
// chunk with its diagonal block, and orders outer chunks so that this block is
// the last that adds to the chunk's gradients of the inner side. So all
// gradients of a chunk are complete after its blocks as the outer chunk.
std::vector<Block> ForwardBlocks(const std::vector<int64_t>& chunks);
std::vector<Block> BackwardBlocks(const std::vector<int64_t>& chunks,
                                  BackwardOrder order);
std::vector<int64_t> OuterChunks(const std::vector<int64_t>& chunks,
                                 BackwardOrder order);

// How often one layer (or one step, for Part::kStep) runs a segment, on full
// chunks and on the tail.
struct Executions {
  int64_t full = 0, tail = 0;
};
Executions CountExecutions(const StreamShape& shape, Segment which);
// Returns the additional executions per step of one of forward's segments for
// chunks that run again. A group's last layer runs only up to attention's
// output.
Executions CountRerun(const StreamShape& shape, Segment which);

// Bytes copied from (in) and to (out) host memory.
struct Traffic {
  int64_t in = 0, out = 0;
};
// The traffic of one layer: of its forward, and of backward's two phases, which
// are the token-local work (post.backward, qkv.backward) and the blocks of
// attention. If chunks run again, `forward` is that of a layer that reruns, and
// `rerun` is the mean over all layers.
struct LayerTraffic {
  Traffic forward, rerun, tokens, blocks;
};
LayerTraffic CountTraffic(const StreamShape& shape);
// Returns the traffic that does not depend on fractions: CountTraffic's without
// the swapped rows of each class, which are sent and fetched once. Counts all
// rows of q, k and v as both stored and recomputed; for q that is an upper
// bound.
LayerTraffic FixedTraffic(const StreamShape& shape);

// Returns the bytes that a layer's backward copies in and out for its blocks.
int64_t BlockBytes(StreamOptions options, BackwardOrder order);
// Returns the order with fewer BlockBytes, keys outer on ties.
BackwardOrder OrderOfLeastBytes(const StreamOptions& options);

}  // namespace sluice::stream
