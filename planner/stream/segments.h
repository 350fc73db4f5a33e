// The segments of compute of a streamed step, with the names used in traces,
// plans and profiles.
//
// Thread safety: values.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace sluice::stream {

// A segment of compute, the unit of the memory plan. Each one runs on full
// chunks and, under another name, on the shorter last chunk.
enum class Segment {
  kEmbedForward,
  kQkvForward,
  kDiagonalForward,
  kOffdiagonalForward,
  kPostForward,
  kLoss,
  kPostBackward,
  kQkvRecompute,  // runs only if rows of q, k or v are dropped
  kDiagonalBackward,
  kOffdiagonalBackward,
  kQkvBackward,
  kEmbedBackward,
};
inline constexpr int kSegmentCount = 12;

// Where a segment's time is counted: in each layer's forward or backward, or
// once per step.
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

// Returns the name of a kind in plans: "qkv.forward.full", "qkv.forward.tail".
std::string KindOf(Segment which, bool full);

}  // namespace sluice::stream
