#include "tests/fake_cuda/races.h"

#include "gtest/gtest.h"

namespace sluice::fake_cuda {
namespace {

class Races : public ::testing::Test {
 protected:
  // Writes and Reads enqueue one operation on [begin, end), and return whether
  // it races.
  bool Writes(Timeline& by, uint64_t begin, uint64_t end) {
    by.Enqueue(host_);
    return detector_.Access(by, {1, begin, end}, true, "a write").has_value();
  }
  bool Reads(Timeline& by, uint64_t begin, uint64_t end) {
    by.Enqueue(host_);
    return detector_.Access(by, {1, begin, end}, false, "a read").has_value();
  }

  RaceDetector detector_;
  Clock host_;
  Timeline first_{0, {}}, second_{1, {}}, third_{2, {}};
};

TEST_F(Races, OneStreamNeverRacesWithItself) {
  EXPECT_FALSE(Writes(first_, 0, 10));
  EXPECT_FALSE(Reads(first_, 0, 10));
  EXPECT_FALSE(Writes(first_, 5, 15));
}

TEST_F(Races, TwoReadsDoNotRace) {
  EXPECT_FALSE(Reads(first_, 0, 10));
  EXPECT_FALSE(Reads(second_, 0, 10));
}

TEST_F(Races, EachKindOfConflictIsFound) {
  EXPECT_FALSE(Writes(first_, 0, 10));
  EXPECT_TRUE(Reads(second_, 0, 10));
  EXPECT_FALSE(Writes(first_, 20, 30));
  EXPECT_TRUE(Writes(second_, 20, 30));
  EXPECT_FALSE(Reads(first_, 40, 50));
  EXPECT_TRUE(Writes(second_, 40, 50));
}

TEST_F(Races, AccessesRaceOnlyIfTheyShareAByte) {
  EXPECT_FALSE(Writes(first_, 0, 10));
  EXPECT_FALSE(Reads(second_, 10, 20));
  EXPECT_TRUE(Reads(second_, 9, 12));
}

TEST_F(Races, AnEventOrdersTwoStreams) {
  EXPECT_FALSE(Writes(first_, 0, 10));
  const Clock event = first_.clock;
  second_.clock.Join(event);
  EXPECT_FALSE(Reads(second_, 0, 10));
}

TEST_F(Races, AnEventOrdersOnlyTheWorkBeforeIt) {
  const Clock event = first_.clock;
  EXPECT_FALSE(Writes(first_, 0, 10));
  second_.clock.Join(event);
  EXPECT_TRUE(Reads(second_, 0, 10));
}

TEST_F(Races, OrderGoesThroughAThirdStream) {
  EXPECT_FALSE(Writes(first_, 0, 10));
  second_.clock.Join(first_.clock);
  second_.Enqueue(host_);
  third_.clock.Join(second_.clock);
  EXPECT_FALSE(Writes(third_, 0, 10));
}

TEST_F(Races, WorkEnqueuedAfterTheHostWaitedDoesNotRace) {
  EXPECT_FALSE(Writes(first_, 0, 10));
  host_.Join(first_.clock);
  EXPECT_FALSE(Writes(second_, 0, 10));
}

TEST_F(Races, ALaterReadDoesNotHideAnEarlierOne) {
  EXPECT_FALSE(Reads(first_, 0, 10));
  EXPECT_FALSE(Reads(third_, 0, 10));
  second_.clock.Join(third_.clock);
  EXPECT_TRUE(Writes(second_, 0, 10));
}

TEST_F(Races, ForgottenBytesDoNotRace) {
  EXPECT_FALSE(Writes(first_, 0, 10));
  detector_.Forget({1, 0, 5});
  EXPECT_FALSE(Reads(second_, 0, 5));
  EXPECT_TRUE(Reads(second_, 0, 6));
}

TEST_F(Races, UsesAreSeenAfterTheHostWaited) {
  first_.Enqueue(host_);
  const Uses uses = {{0, first_.now()}};
  EXPECT_FALSE(AllSeen(uses, host_));
  host_.Join(first_.clock);
  EXPECT_TRUE(AllSeen(uses, host_));
}

}  // namespace
}  // namespace sluice::fake_cuda
