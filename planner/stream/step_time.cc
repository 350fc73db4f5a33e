#include "planner/stream/step_time.h"

#include <algorithm>
#include <map>
#include <string>

#include "planner/stream/profile.h"
#include "planner/stream/schedule.h"

namespace sluice::stream {
namespace {

// Returns the seconds of all executions of a segment in a layer (or in the
// step).
class SegmentSeconds {
 public:
  SegmentSeconds(const StreamShape& shape,
                 const std::vector<plan::SegmentKind>& recorded)
      : shape_(shape) {
    for (const plan::SegmentKind& kind : recorded) {
      once_[kind.name] = kind.seconds;
    }
  }

  double Of(Segment which) const {
    return Of(which, CountExecutions(shape_, which));
  }
  double Rerun(Segment which) const {
    return Of(which, CountRerun(shape_, which));
  }

 private:
  double Of(Segment which, const Executions& count) const {
    const auto once = [&](bool full) {
      const auto found = once_.find(KindOf(which, full));
      return found != once_.end() ? found->second : 0;
    };
    return static_cast<double>(count.full) * once(true) +
           static_cast<double>(count.tail) * once(false);
  }

  const StreamShape& shape_;
  std::map<std::string, double> once_;  // of one execution, by segment kind
};

// Returns the seconds that a layer takes to recompute the dropped part of each
// class.
double RecomputeSeconds(const StreamOptions& options, const StreamShape& shape,
                        const std::vector<plan::SegmentKind>& recorded) {
  double recompute = 0;
  for (const plan::SkeletalClass& c : Profile(options, recorded).classes) {
    const ClassFractions f = shape.fractions(FindClass(c.name)->which);
    recompute += c.recompute_seconds * std::max(0.0, 1 - f.keep - f.swap);
  }
  return recompute;
}

}  // namespace

double StepSeconds(const StreamOptions& options,
                   const std::vector<plan::SegmentKind>& recorded,
                   const LinkSpeeds& links) {
  const StreamShape shape(options);
  const SegmentSeconds seconds(shape, recorded);
  const LayerCompute layer = {
      .keys = seconds.Of(Segment::kOffdiagonalForward),
      .forward = seconds.Of(Segment::kQkvForward) +
                 seconds.Of(Segment::kDiagonalForward) +
                 seconds.Of(Segment::kPostForward),
      .tokens = seconds.Of(Segment::kPostBackward) +
                RecomputeSeconds(options, shape, recorded),
      .blocks = seconds.Of(Segment::kDiagonalBackward) +
                seconds.Of(Segment::kOffdiagonalBackward),
      .projections = seconds.Of(Segment::kQkvBackward)};
  const EndsCompute ends = {
      .embed = seconds.Of(Segment::kEmbedForward),
      .loss = seconds.Of(Segment::kLoss),
      .embed_backward = seconds.Of(Segment::kEmbedBackward)};
  const double rerun =
      TimeRerun(options, seconds.Rerun(Segment::kOffdiagonalForward),
                seconds.Rerun(Segment::kQkvForward) +
                    seconds.Rerun(Segment::kDiagonalForward) +
                    seconds.Rerun(Segment::kPostForward),
                links);
  return static_cast<double>(shape.layers) *
             TimeLayer(shape, layer, links).total() +
         rerun + TimeEnds(shape, ends, links);
}

}  // namespace sluice::stream
