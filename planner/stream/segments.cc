#include "planner/stream/segments.h"

namespace sluice::stream {
namespace {

constexpr bool SegmentsAreInOrder() {
  for (int i = 0; i < kSegmentCount; ++i) {
    if (static_cast<int>(kSegments[i].which) != i) return false;
  }
  return true;
}
static_assert(SegmentsAreInOrder());

}  // namespace

std::string KindOf(Segment which, bool full) {
  return std::string(Traits(which).name) + (full ? ".full" : ".tail");
}

}  // namespace sluice::stream
