// What a streamed step runs and in which order: its segments, the blocks of
// attention with their masks, how often each runs, and the bytes they move.
//
// Thread safety: values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/stream/stream_shape.h"

namespace sluice::stream {

// A piece of compute that the memory plan knows by name. Each runs on full
// chunks and, under a name of its own, on the shorter last one.
enum class Segment {
  kEmbedForward,
  kQkvForward,
  kDiagonalForward,
  kOffdiagonalForward,
  kPostForward,
  kLoss,
  kPostBackward,
  kQkvRecompute,  // only where rows of q, k or v are dropped
  kDiagonalBackward,
  kOffdiagonalBackward,
  kQkvBackward,
  kEmbedBackward,
};
inline constexpr int kSegmentCount = 12;

// Whose time a segment is: of each layer's forward or backward, or of the step.
enum class Part { kForward, kBackward, kStep };

struct SegmentTraits {
  Segment which;
  const char* name;
  Part part;
};
inline constexpr std::array<SegmentTraits, kSegmentCount> kSegments = {{
    {Segment::kEmbedForward, "embed.forward", Part::kStep},
    {Segment::kQkvForward, "qkv.forward", Part::kForward},
    {Segment::kDiagonalForward, "block.diagonal.forward", Part::kForward},
    {Segment::kOffdiagonalForward, "block.offdiagonal.forward", Part::kForward},
    {Segment::kPostForward, "post.forward", Part::kForward},
    {Segment::kLoss, "loss", Part::kStep},
    {Segment::kPostBackward, "post.backward", Part::kBackward},
    {Segment::kQkvRecompute, "qkv.recompute", Part::kBackward},
    {Segment::kDiagonalBackward, "block.diagonal.backward", Part::kBackward},
    {Segment::kOffdiagonalBackward, "block.offdiagonal.backward",
     Part::kBackward},
    {Segment::kQkvBackward, "qkv.backward", Part::kBackward},
    {Segment::kEmbedBackward, "embed.backward", Part::kStep},
}};
constexpr const SegmentTraits& Traits(Segment which) {
  return kSegments[static_cast<size_t>(which)];
}

// "qkv.forward.full", "qkv.forward.tail": a kind, as plans name it.
std::string KindOf(Segment which, bool full);

// Key chunk i against query chunk j >= i. A diagonal block is causal; in the
// others every row sees every key.
enum class Mask { kCausal, kNone };
struct Block {
  int64_t i, j;
  constexpr Mask mask() const { return i == j ? Mask::kCausal : Mask::kNone; }
  bool operator==(const Block&) const = default;
};

// In the order they run: forward with q outer, each row up to its diagonal;
// backward with k/v outer, so that a key chunk's gradients are whole first.
std::vector<Block> ForwardBlocks(const std::vector<int64_t>& chunks);
std::vector<Block> BackwardBlocks(const std::vector<int64_t>& chunks);

// How often one layer (of Part::kStep: one step) runs each kind.
struct Executions {
  int64_t full = 0, tail = 0;
};
Executions CountExecutions(const StreamShape& shape, Segment which);

// Bytes one layer moves over the link to host memory, as far as fractions do
// not decide: beside them each class travels out and in once, with the rows
// that are swapped (those of q, k and v are counted here, for all rows travel).
struct Traffic {
  int64_t in = 0, out = 0;
};
struct LayerTraffic {
  Traffic forward;
  // Backward's two phases: token-local work (post.backward, qkv.backward) and
  // blocks of attention.
  Traffic tokens, blocks;
};
LayerTraffic FixedTraffic(const StreamShape& shape);

}  // namespace sluice::stream
