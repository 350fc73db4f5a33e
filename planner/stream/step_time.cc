#include "planner/stream/step_time.h"

#include <algorithm>
#include <map>
#include <string>

#include "planner/stream/profile.h"
#include "planner/stream/schedule.h"

namespace sluice::stream {
namespace {

double Over(double bytes, double speed) {
  return speed > 0 ? bytes / speed : 0;
}

class StepTime {
 public:
  StepTime(const StreamOptions& options,
           const std::vector<plan::SegmentKind>& recorded,
           const LinkSpeeds& links)
      : shape_(options), links_(links), traffic_(CountTraffic(shape_)) {
    for (const plan::SegmentKind& kind : recorded) {
      seconds_[kind.name] = kind.seconds;
    }
  }

  double Seconds(double recompute) const {
    const double layer = Forward() + Tokens(recompute) + Blocks();
    return static_cast<double>(shape_.layers) * layer + Ends();
  }

 private:
  double Of(Segment which) const {
    const Executions count = CountExecutions(shape_, which);
    const auto once = [&](bool full) {
      const auto found = seconds_.find(KindOf(which, full));
      return found != seconds_.end() ? found->second : 0;
    };
    return static_cast<double>(count.full) * once(true) +
           static_cast<double>(count.tail) * once(false);
  }
  double In(double bytes) const { return Over(bytes, links_.h2d); }
  double Out(double bytes) const { return Over(bytes, links_.d2h); }
  double Depth() const { return shape_.prefetch_depth; }

  double Forward() const;
  double Tokens(double recompute) const;
  double Blocks() const;
  double Ends() const;

  const StreamShape shape_;
  const LinkSpeeds links_;
  const LayerTraffic traffic_;
  std::map<std::string, double> seconds_;  // of one execution, by kind
};

// A ring of p slots brings p blocks in the time that one takes to come and to
// be used; everything else has two slots, and hides behind compute or compute
// behind it.
double StepTime::Forward() const {
  const double blocks = Of(Segment::kOffdiagonalForward);
  const double rest = Of(Segment::kQkvForward) + Of(Segment::kDiagonalForward) +
                      Of(Segment::kPostForward);
  const double keys = In(static_cast<double>(
      traffic_.forward.in - shape_.moved_bytes(Class::kInput)));
  const double streamed = std::max({blocks, keys, (blocks + keys) / Depth()});
  return std::max({streamed + rest,
                   In(static_cast<double>(traffic_.forward.in)),
                   Out(static_cast<double>(traffic_.forward.out))});
}

double StepTime::Tokens(double recompute) const {
  return std::max(
      {Of(Segment::kPostBackward) + Of(Segment::kQkvBackward) + recompute,
       In(static_cast<double>(traffic_.tokens.in)),
       Out(static_cast<double>(traffic_.tokens.out))});
}

// The inner side's gradients come, are added to, and go again: a slot is
// taken for all three.
double StepTime::Blocks() const {
  const double compute =
      Of(Segment::kDiagonalBackward) + Of(Segment::kOffdiagonalBackward);
  const double all = In(static_cast<double>(traffic_.blocks.in));
  const double out = Out(static_cast<double>(traffic_.blocks.out));
  const double sums = In(static_cast<double>(traffic_.blocks.out));
  return std::max({compute, all, out, (all - sums + compute) / Depth(),
                   (sums + compute + out) / Depth()});
}

// Embedding and loss.
double StepTime::Ends() const {
  double sum = 0;
  for (const SegmentTraits& segment : kSegments) {
    if (segment.part == Part::kStep) sum += Of(segment.which);
  }
  return sum;
}

}  // namespace

double StepSeconds(const StreamOptions& options,
                   const std::vector<plan::SegmentKind>& recorded,
                   const LinkSpeeds& links) {
  // Of a layer: what each class would take if it was dropped whole.
  double recompute = 0;
  for (const plan::SkeletalClass& c : Profile(options, recorded).classes) {
    const ClassFractions f =
        StreamShape(options).fractions(FindClass(c.name)->which);
    recompute += c.recompute_seconds * std::max(0.0, 1 - f.keep - f.swap);
  }
  return StepTime(options, recorded, links).Seconds(recompute);
}

}  // namespace sluice::stream
