// Tests which ranks take a new plan at a step boundary, and whether a lease has
// the memory to record new fractions.
#include "client/torch/run/plan_change.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PlanChange, ANodeTakesAPlanOnceAllItsRanksWereOfferedIt) {
  EXPECT_THAT(WhoTakes({{7, 0}, {7, 0}}), ElementsAre(true, true));
  EXPECT_THAT(WhoTakes({{7, 0}, {0, 0}}), ElementsAre(false, false));
  EXPECT_THAT(WhoTakes({{0, 0}, {7, 0}}), ElementsAre(false, false));
  EXPECT_THAT(WhoTakes({{7, 0}, {8, 0}}), ElementsAre(false, false));
  EXPECT_THAT(WhoTakes({{7, 0}, {8, 0}, {7, 0}}),
              ElementsAre(false, false, false));
}

TEST(PlanChange, WithoutAnOfferNoRankTakesAPlan) {
  EXPECT_THAT(WhoTakes({{0, 0}, {0, 0}, {0, 2}}),
              ElementsAre(false, false, false));
  EXPECT_THAT(WhoTakes({}), IsEmpty());
}

TEST(PlanChange, NodesTakeTheirPlansIndependently) {
  EXPECT_THAT(WhoTakes({{7, 0}, {7, 0}, {0, 2}, {3, 2}}),
              ElementsAre(true, true, false, false));
  EXPECT_THAT(WhoTakes({{7, 0}, {7, 0}, {3, 2}, {3, 2}}),
              ElementsAre(true, true, true, true));
}

TEST(PlanChange, FractionsThatTheLeaseCannotRecordAreRefused) {
  RecordingMemory memory = {.lease = Bytes(100),
                            .used = Bytes(40),
                            .rings = Bytes(30),
                            .kept = Bytes(10),
                            .transient = Bytes(20)};
  EXPECT_TRUE(RoomToRecord(memory).ok());
  for (Bytes RecordingMemory::*more :
       {&RecordingMemory::used, &RecordingMemory::rings, &RecordingMemory::kept,
        &RecordingMemory::transient}) {
    RecordingMemory over = memory;
    over.*more += Bytes(1);
    EXPECT_EQ(RoomToRecord(over).code(), absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace sluice::runtime
