#include "planner/stream/transients.h"

#include <algorithm>

#include "planner/stream/stream_shape.h"
#include "planner/stream/transient_segments.h"

namespace sluice::stream {
namespace {

// Simulates the segments of a whole step. The first chunk represents all full
// ones, except off the diagonal: the second chunk is the first with earlier
// keys.
class Transients {
 public:
  Transients(const StreamOptions& options, const Kernels& kernels)
      : shape_(options),
        heads_(options.model.heads, options.model.kv_heads, shape_.ranks),
        first_(shape_, options.model, heads_, kernels, 0),
        second_(shape_, options.model, heads_, kernels,
                std::min<int64_t>(1, shape_.chunks() - 1)),
        last_(shape_, options.model, heads_, kernels, shape_.chunks() - 1) {}

  int64_t Peak(Segment which) {
    const bool offdiagonal = which == Segment::kOffdiagonalForward ||
                             which == Segment::kOffdiagonalBackward;
    int64_t most = (offdiagonal ? second_ : first_).Peak(which);
    if (shape_.has_tail()) most = std::max(most, last_.Peak(which));
    return most;
  }

 private:
  const StreamShape shape_;
  const HeadLayout heads_;
  TransientSegments first_, second_, last_;
};

}  // namespace

Bytes TransientBytes(const StreamOptions& options, Segment which,
                     const Kernels& kernels) {
  return Bytes(Transients(options, kernels).Peak(which));
}

Bytes TransientBytes(const StreamOptions& options, const Kernels& kernels) {
  Transients transients(options, kernels);
  int64_t most = 0;
  for (const SegmentTraits& segment : kSegments) {
    most = std::max(most, transients.Peak(segment.which));
  }
  return Bytes(most);
}

}  // namespace sluice::stream
