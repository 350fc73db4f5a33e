#include "daemon/state/draft_pace.h"

#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

// Events until so many rows are drafted.
size_t EventsFor(const DraftPace& pace, size_t rows, size_t record) {
  size_t events = 0;
  for (size_t drafted = 0; drafted < rows; ++events) {
    drafted += pace.RowsBeside(record);
  }
  return events;
}

TEST(DraftPace, IsDoneBeforeTheRoomIsTaken) {
  for (const size_t rows : {0, 1, 1000, 16'384, 65'536}) {
    for (const size_t record : {1, 100, 1000, 50'000}) {
      const DraftPace pace(rows, 1 << 20);
      EXPECT_LE(EventsFor(pace, rows, record) * record, (1 << 20) + record)
          << rows << " rows, records of " << record;
    }
  }
}

// Wrong once: the rows of 64 ranks were drafted within 64 events, which came
// closely behind each other, and each waited for all that were before it.
TEST(DraftPace, TakesNearlyAsLongAsItMay) {
  EXPECT_GT(EventsFor(DraftPace(16'384, 1 << 20), 16'384, 250), 3500);
}

TEST(DraftPace, EndsThoughThereIsNoRoom) {
  EXPECT_EQ(EventsFor(DraftPace(1000, 0), 1000, 1), 1);
  EXPECT_EQ(EventsFor(DraftPace(), 3, 0), 3);
}

}  // namespace
}  // namespace sluice::daemon
