// How links are booked, in virtual time: exact, whatever the machine does.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/sim/link.h"

namespace sluice::device {
namespace {

constexpr auto kH2D = CopyDirection::kHostToDevice;
constexpr auto kD2H = CopyDirection::kDeviceToHost;

class SimLinkTest : public ::testing::Test {
 protected:
  SimLinkTest() {
    link_.bytes_per_second[0] = 1e9;  // a byte a nanosecond
    link_.bytes_per_second[1] = 0.5e9;
  }
  int64_t Book(CopyDirection direction, int64_t size, int64_t ready_ns) {
    return BookLink(link_, direction, Bytes(size), ready_ns);
  }

  SharedLink link_ = {};
};

TEST_F(SimLinkTest, ASliceTakesItsTimeFromWhenItIsReady) {
  EXPECT_EQ(Book(kH2D, 1000, 5000), 6000);
}

TEST_F(SimLinkTest, DirectionsDoNotSlowEachOther) {
  EXPECT_EQ(Book(kH2D, 1000, 5000), 6000);
  EXPECT_EQ(Book(kD2H, 1000, 5000), 7000);
}

TEST_F(SimLinkTest, TwoStreamsInTurnGetHalfEach) {
  int64_t a = 0, b = 0;
  for (int i = 0; i < 10; ++i) {
    a = Book(kH2D, 1000, a);
    b = Book(kH2D, 1000, b);
  }
  EXPECT_EQ(a, 19000);  // alone: 10000
  EXPECT_EQ(b, 20000);
}

TEST_F(SimLinkTest, AStreamThatWakesUpLateLosesNothing) {
  // Its next slice is ready when the last one ended, not when it woke up.
  const int64_t first = Book(kH2D, 1000, 0);
  EXPECT_EQ(Book(kH2D, 1000, first), 2000);
}

TEST_F(SimLinkTest, IdleTimeIsNotSavedUp) {
  Book(kH2D, 1000, 0);
  EXPECT_EQ(Book(kH2D, 1000, 50000), 51000);
  EXPECT_EQ(Book(kH2D, 1000, 50000), 52000);
}

TEST_F(SimLinkTest, ANewSpeedCountsFromTheNextSlice) {
  Book(kH2D, 1000, 0);
  link_.bytes_per_second[0] = 2e9;
  EXPECT_EQ(Book(kH2D, 1000, 0), 1500);
}

TEST_F(SimLinkTest, ALinkWithoutSpeedTakesNoTime) {
  link_.bytes_per_second[0] = 0;
  EXPECT_EQ(Book(kH2D, 1'000'000, 70), 70);
}

}  // namespace
}  // namespace sluice::device
