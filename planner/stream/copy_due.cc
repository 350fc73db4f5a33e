#include "planner/stream/copy_due.h"

#include <algorithm>

#include "planner/stream/segments.h"

namespace sluice::stream {
namespace {

// Returns the seconds of one execution on a full chunk, or on the tail if only
// that was recorded.
double Once(const std::vector<plan::SegmentKind>& recorded, Segment which) {
  for (const bool full : {true, false}) {
    const auto found = std::ranges::find(recorded, KindOf(which, full),
                                         &plan::SegmentKind::name);
    if (found != recorded.end()) return found->seconds;
  }
  return 0;
}

}  // namespace

std::vector<CopyDue> CopiesDue(const StreamOptions& options,
                               const std::vector<plan::SegmentKind>& recorded) {
  const auto once = [&](Segment which) { return Once(recorded, which); };
  // Rings of two slots: while one chunk is computed, the next one is fetched
  // and the one before is sent. A layer of one chunk has no such compute.
  const double next = options.layout.chunks() > 1 ? 1 : 0;
  // The first chunk has only its diagonal block, and so has backward's last
  // outer chunk.
  const double forward =
      next * (once(Segment::kQkvForward) + once(Segment::kDiagonalForward) +
              once(Segment::kPostForward));
  const double tokens =
      next * (once(Segment::kPostBackward) + once(Segment::kQkvRecompute));
  const double outer =
      next * (once(Segment::kDiagonalBackward) + once(Segment::kQkvBackward));
  // Slots of the block ring, except the one in use.
  const double others = options.prefetch_depth - 1;
  const double block = others * once(Segment::kOffdiagonalForward);
  const double inner = others * once(Segment::kOffdiagonalBackward);
  const double loss = next * once(Segment::kLoss);
  return {{"embedding out", next * once(Segment::kEmbedForward)},
          {"x", forward},
          {"k, v", block},
          {"q, k, v out", forward},
          {"o, lse out", forward},
          {"layer out", forward},
          {"y", loss},
          {"dY out", loss},
          {"saved rows", tokens},
          {"dO, dX out", tokens},
          {"q, k, v again", tokens},
          {"outer chunk", outer},
          {"inner chunk", inner},
          {"gradients of inner chunk", inner},
          {"x, dX", outer},
          {"dX out", outer},
          {"dX", next * once(Segment::kEmbedBackward)}};
}

}  // namespace sluice::stream
