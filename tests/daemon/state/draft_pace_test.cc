#include "daemon/state/draft_pace.h"

#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

constexpr size_t kRoom = 1 << 20;

// Events until so many rows are drafted.
size_t EventsFor(DraftPace pace, size_t rows, size_t record) {
  size_t events = 0;
  for (size_t drafted = 0; drafted < rows; ++events) {
    drafted += pace.RowsBeside(record);
  }
  return events;
}

TEST(DraftPace, IsDoneWithTheRecordThatTakesTheRest) {
  for (const size_t rows : {0, 1, 1000, 16'384, 65'536}) {
    for (const size_t record : {1, 100, 1000}) {
      EXPECT_LT(EventsFor(DraftPace(rows, kRoom), rows, record) * record,
                kRoom + record)
          << rows << " rows, records of " << record;
    }
  }
}

// Guards against a draft of 64 ranks' rows within 64 events: these come closely
// behind each other, and each would wait for all before it.
TEST(DraftPace, TakesAsLongAsItMay) {
  EXPECT_GT(EventsFor(DraftPace(16'384, kRoom), 16'384, 250), 4190);
}

TEST(DraftPace, ShareOfALargeRecordIsSpreadOverTheEventsBehindIt) {
  DraftPace pace(65'536, kRoom);
  EXPECT_EQ(pace.RowsBeside(kRoom / 16), DraftPace::kMostRows);  // of 4096
  for (int i = 1; i < 16; ++i) {
    EXPECT_EQ(pace.RowsBeside(16), DraftPace::kMostRows);
  }
  // What was due beside those, a row each.
  EXPECT_EQ(pace.RowsBeside(16), 16);
  EXPECT_EQ(pace.RowsBeside(16), 1);
}

TEST(DraftPace, EndsThoughThereIsNoRoom) {
  EXPECT_EQ(EventsFor(DraftPace(1000, 0), 1000, 1), 4);
  EXPECT_EQ(EventsFor(DraftPace(), 3, 0), 3);
}

}  // namespace
}  // namespace sluice::daemon
