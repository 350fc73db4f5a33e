#include "daemon/bandwidth/shares.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::daemon::bandwidth {
namespace {

using ::testing::ElementsAre;

constexpr double kWindow = 1;  // seconds
constexpr double kAll = 1e9;

const std::vector<int> kLeft = {0, 2}, kRight = {1, 2}, kLinkOnly = {0};

// Returns a copy that takes all bytes it can get, and needs `needed` of them
// within `due` seconds.
LentCopy Copy(double needed, double due,
              const std::vector<int>& path = kLinkOnly) {
  return {.path = &path,
          .excess = kAll,
          .weight = 1,
          .needed = needed,
          .due = due,
          .promised_rate = 0,
          .may = kAll};
}

// Returns the bytes lent to each copy on a link of 10 bytes per window.
std::vector<double> Share(const std::vector<LentCopy>& copies) {
  std::vector<double> room = {10};
  return ShareToLate(copies, kWindow, room);
}

TEST(DueFirst, ACopyThatAFairShareServesInTimeGetsNothingExtra) {
  // A fair share of 5 bytes per second carries 20 bytes by 5 s, as the current
  // window of 1 s does not count.
  EXPECT_THAT(Share({Copy(20, 5), Copy(0, 0)}), ElementsAre(0, 0));
  EXPECT_THAT(Share({Copy(21, 5), Copy(0, 0)}), ElementsAre(10, 0));
  // A copy without a deadline is never late.
  EXPECT_THAT(Share({Copy(0, -5), Copy(0, -5)}), ElementsAre(0, 0));
}

TEST(DueFirst, TheEarliestDeadlineGoesFirst) {
  EXPECT_THAT(Share({Copy(40, 4), Copy(6, 1.2)}), ElementsAre(4, 6));
  EXPECT_THAT(Share({Copy(40, -1), Copy(6, 1.2)}), ElementsAre(10, 0));
}

TEST(DueFirst, NoMoreThanTheDemandAndTheAllowanceIsLent) {
  std::vector<LentCopy> copies = {Copy(40, 1), Copy(40, 2)};
  copies[0].excess = 3;
  copies[1].may = 2;
  EXPECT_THAT(Share(copies), ElementsAre(3, 2));
  copies[1].may = -1;
  EXPECT_THAT(Share(copies), ElementsAre(3, 0));
}

TEST(DueFirst, ACopyServedByItsPromiseOrWeightBorrowsNothing) {
  std::vector<LentCopy> copies = {Copy(30, 5), Copy(0, 0)};
  EXPECT_THAT(Share(copies), ElementsAre(10, 0));
  copies[0].promised_rate = 8;
  EXPECT_THAT(Share(copies), ElementsAre(0, 0));
  copies[0].promised_rate = 0;
  copies[0].weight = 4;
  EXPECT_THAT(Share(copies), ElementsAre(0, 0));
}

TEST(DueFirst, LentBytesFitIntoEveryChannelOfThePath) {
  std::vector<double> room = {8, 8, 10};
  const auto given =
      ShareToLate({Copy(40, 1, kLeft), Copy(40, 2, kRight)}, kWindow, room);
  EXPECT_THAT(given, ElementsAre(8, 2));
  EXPECT_THAT(room, ElementsAre(0, 6, 0));
}

TEST(DueFirst, AnEmptyWindowLendsNothing) {
  std::vector<double> room = {0};
  EXPECT_THAT(ShareToLate({Copy(40, 1)}, 0, room), ElementsAre(0));
}

}  // namespace
}  // namespace sluice::daemon::bandwidth
