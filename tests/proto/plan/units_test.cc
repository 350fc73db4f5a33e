#include "proto/plan/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/plan/progress.h"

namespace sluice::plan {
namespace {

using ::testing::HasSubstr;

Trace Sample() {
  return {.buffers = {{7, 10, 40, Bytes(128)},
                      {9, 20, 30, Bytes(64)},
                      {3, 30, 50, Bytes(64)}},
          .end = 60,
          .alignment = Bytes(64)};
}

UnitPlan SampleUnit() {
  return {Canonical(Sample()),
          {.offsets = {Bytes(0), Bytes(128), Bytes(128)},
           .peak = Bytes(192),
           .lower_bound = Bytes(192),
           .proved_by = "max_live",
           .method = "greedy:size"}};
}

TEST(Units, IdsNamesAndTheClockDoNotMatter) {
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

TEST(Units, SizesTimesOrderAndAlignmentDo) {
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

TEST(Units, SurviveARoundTrip) {
  const auto read = DecodeUnits(EncodeUnits({SampleUnit()}));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 1u);
  EXPECT_TRUE(SameUnit((*read)[0].trace, SampleUnit().trace));
  EXPECT_EQ((*read)[0].placement.offsets, SampleUnit().placement.offsets);
  EXPECT_EQ((*read)[0].placement.method, "greedy:size");
  EXPECT_TRUE(DecodeUnits(EncodeUnits({})).ok());
}

TEST(Units, ADamagedFileIsRefusedWhereverTheDamageIs) {
  const std::string good = EncodeUnits({SampleUnit()});
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_FALSE(DecodeUnits(bad).ok()) << at;
    EXPECT_FALSE(DecodeUnits(good.substr(0, at)).ok()) << at;
  }
}

TEST(Units, APlacementThatOverlapsIsRefusedThoughTheChecksumFits) {
  UnitPlan unit = SampleUnit();
  unit.placement.offsets[1] = Bytes(64);
  const auto read = DecodeUnits(EncodeUnits({unit}));
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(std::string(read.status().message()),
              HasSubstr("units[0].placement"));
}

TEST(PlanProgress, SurvivesARoundTripAndIsNotBelievedHalfWritten) {
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
