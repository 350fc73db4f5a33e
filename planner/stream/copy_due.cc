#include "planner/stream/copy_due.h"

#include <algorithm>

#include "planner/stream/segments.h"

namespace sluice::stream {
namespace {

// One execution on a full chunk; where a row has no full one, on its tail.
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
  // Rings of two: while a chunk is computed the next one comes, and the last
  // one leaves. A layer of one chunk has nothing to compute meanwhile.
  const double next = options.layout.chunks() > 1 ? 1 : 0;
  // The first chunk has no block but its diagonal, backward's last outer chunk
  // neither.
  const double forward =
      next * (once(Segment::kQkvForward) + once(Segment::kDiagonalForward) +
              once(Segment::kPostForward));
  const double tokens =
      next * (once(Segment::kPostBackward) + once(Segment::kQkvRecompute));
  const double outer =
      next * (once(Segment::kDiagonalBackward) + once(Segment::kQkvBackward));
  const double others = options.prefetch_depth - 1;  // slots of blocks
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
