// The segments of compute of a streamed step, with the names used in traces,
// plans and profiles.
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

// Where a segment's time counts: per layer's pass, or once per step.
enum class Part { kForward, kBackward, kStep };

struct SegmentTraits {
  Segment which;
  const char* name;
  Part part;
};
inline constexpr auto kSegments = std::to_array<SegmentTraits>({
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
});

// Returns whether a table's rows are in the order of the enum in `which`.
constexpr bool InEnumOrder(const auto& table) {
  for (size_t i = 0; i < table.size(); ++i) {
    if (static_cast<size_t>(table[i].which) != i) return false;
  }
  return true;
}
static_assert(InEnumOrder(kSegments));

constexpr const SegmentTraits& Traits(Segment which) {
  return kSegments[static_cast<size_t>(which)];
}

// Returns the name of a kind in plans: "qkv.forward.full", "qkv.forward.tail".
inline std::string KindOf(Segment which, bool full) {
  return std::string(Traits(which).name) + (full ? ".full" : ".tail");
}

}  // namespace sluice::stream
