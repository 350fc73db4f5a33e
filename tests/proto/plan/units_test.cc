#include "proto/plan/units.h"

#include <gtest/gtest.h>

#include "proto/plan/progress.h"

namespace sluice::plan {
namespace {

Trace Sample() {
  return {.buffers = {{7, 10, 40, Bytes(128)},
                      {9, 20, 30, Bytes(64)},
                      {3, 30, 50, Bytes(64)}},
          .end = 60,
          .alignment = Bytes(64)};
}

TEST(Units, TheKeyIgnoresIdsAndTheScaleOfTimes) {
  Trace other = Sample();
  for (Buffer& b : other.buffers) {
    b.id += 100;
    b.lower = 2 * b.lower + 5;
    b.upper = 2 * b.upper + 5;
  }
  other.end = 1000;
  EXPECT_EQ(UnitKey(other), UnitKey(Sample()));
  EXPECT_TRUE(SameUnit(Canonical(other), Canonical(Sample())));
}

TEST(Units, TheKeyDependsOnSizesTimesOrderAndAlignment) {
  std::vector<Trace> others(4, Sample());
  others[0].buffers[1].size = Bytes(65);
  others[1].buffers[1].upper = 31;
  std::swap(others[2].buffers[0], others[2].buffers[1]);
  others[3].alignment = Bytes(128);
  for (const Trace& other : others) {
    EXPECT_NE(UnitKey(other), UnitKey(Sample()));
    EXPECT_FALSE(SameUnit(Canonical(other), Canonical(Sample())));
  }
}

TEST(PlanProgress, ProgressSurvivesARoundTripAndIsRefusedHalfWritten) {
  const std::string line =
      WriteProgress({3, 12, "of rank 1 | \n", "search", Bytes(100), Bytes(90)});
  EXPECT_EQ(line.size(), kProgressBytes);
  const auto read = ReadProgress(line);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->done, 3);
  EXPECT_EQ(read->all, 12);
  EXPECT_EQ(read->segment, "of rank 1 ? ?");
  EXPECT_EQ(read->lower_bound, Bytes(90));
  const std::string next =
      WriteProgress({4, 12, "of rank 1", "cbc", Bytes(99), Bytes(90)});
  for (size_t at = 1; at < next.find('\n'); ++at) {
    EXPECT_FALSE(ReadProgress(next.substr(0, at) + line.substr(at))) << at;
  }
  EXPECT_FALSE(ReadProgress(""));
}

}  // namespace
}  // namespace sluice::plan
