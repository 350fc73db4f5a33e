#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "planner/planner.h"
#include "proto/plan/validate.h"
#include "tests/planner/traces.h"

namespace sluice::planner {
namespace {

using ::testing::HasSubstr;

TEST(PlanSegments, KindsShareOneRegionBecauseTheyRunOneAfterAnother) {
  std::mt19937 random(1);
  std::vector<plan::SegmentKind> kinds;
  for (int k = 0; k < 8; ++k) {
    kinds.push_back({.name = "kind" + std::to_string(k),
                     .trace = LayerTrace(random, 1 + k % 3, 0.5)});
  }
  const auto layout = PlanSegments(kinds, {});
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(layout->segments.size(), kinds.size());
  Bytes largest;
  for (size_t k = 0; k < kinds.size(); ++k) {
    const plan::SegmentPlan& segment = layout->segments[k];
    EXPECT_EQ(segment.name, kinds[k].name);
    EXPECT_TRUE(
        plan::ValidatePlacement(kinds[k].trace, segment.placement).ok());
    EXPECT_LE(segment.base + segment.placement.peak, layout->peak);
    largest = std::max(largest, segment.placement.peak);
  }
  EXPECT_EQ(layout->peak, largest);
}

TEST(PlanSegments, AnErrorNamesItsSegment) {
  const auto layout =
      PlanSegments({{.name = "loss.full",
                     .trace = {.buffers = {{0, 1, 1, Bytes(64)}}, .end = 1}}},
                   {});
  ASSERT_FALSE(layout.ok());
  EXPECT_THAT(std::string(layout.status().message()),
              HasSubstr("segment 'loss.full': buffer 0 lives in [1, 1)"));
}

TEST(PlanSegments, NoSegmentsNeedNothing) {
  const auto layout = PlanSegments({}, {});
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->peak, Bytes(0));
}

}  // namespace
}  // namespace sluice::planner
