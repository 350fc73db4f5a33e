#include "planner/stream/price.h"

#include <map>
#include <string>

#include "planner/stream/schedule.h"
#include "planner/stream/stream_shape.h"

namespace sluice::stream {

StepPrice PriceOf(const StreamOptions& options,
                  const plan::RankProfile& profile) {
  const FractionMap fractions =
      FillFractions(options.model, options.fractions, options.alpha);
  StreamOptions whole = options;  // the same step without recomputation
  whole.rerun_chunks = 0;
  whole.fractions = fractions;
  for (auto& [name, f] : whole.fractions) f.swap = 1 - f.keep;
  StepPrice price{.hbm = KeptBytes(options), .host = HostBytes(options)};
  price.recomputed =
      KeptBytes(whole) + HostBytes(whole) - price.hbm - price.host;
  for (const plan::SkeletalClass& c : profile.classes) {
    const auto found = fractions.find(c.name);
    if (found == fractions.end()) continue;
    price.recompute_s += static_cast<double>(plan::KindOf(profile, c).layers) *
                         c.recompute_seconds *
                         (1 - found->second.keep - found->second.swap);
  }
  std::map<std::string, int64_t> rerun;  // executions
  const StreamShape shape(options);
  for (const SegmentTraits& segment : kSegments) {
    const Executions count = CountRerun(shape, segment.which);
    rerun[KindOf(segment.which, true)] = count.full;
    rerun[KindOf(segment.which, false)] = count.tail;
  }
  for (const plan::SegmentKind& kind : profile.segments) {
    const auto found = rerun.find(kind.name);
    if (found == rerun.end()) continue;
    price.recompute_s += kind.seconds * static_cast<double>(found->second);
  }
  return price;
}

}  // namespace sluice::stream
