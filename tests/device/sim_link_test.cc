// Tests how time on links is booked. Virtual time makes all results exact.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/sim/link.h"

namespace sluice::device {
namespace {

constexpr auto kToGpu = CopyDirection::kHostToDevice;
constexpr auto kToHost = CopyDirection::kDeviceToHost;

class SimLinkTest : public ::testing::Test {
 protected:
  SimLinkTest() {
    link_.bytes_per_second[0] = 1e9;  // a byte a nanosecond
    link_.bytes_per_second[1] = 0.5e9;
  }
  int64_t Book(CopyDirection direction, int64_t size, int64_t ready_ns) {
    const int d = static_cast<int>(direction);
    return BookLink(link_.bytes_per_second[d], clocks_.next_free_ns[d],
                    Bytes(size), ready_ns, /*now_ns=*/ready_ns);
  }

  SharedLink link_ = {};
  SharedClocks::Link clocks_ = {};
};

TEST_F(SimLinkTest, TheTimeOfASliceBeginsWhenTheSliceIsReady) {
  EXPECT_EQ(Book(kToGpu, 1000, 5000), 6000);
}

TEST_F(SimLinkTest, DirectionsDoNotSlowEachOther) {
  EXPECT_EQ(Book(kToGpu, 1000, 5000), 6000);
  EXPECT_EQ(Book(kToHost, 1000, 5000), 7000);
}

TEST_F(SimLinkTest, TwoStreamsInTurnGetHalfEach) {
  int64_t a = 0, b = 0;
  for (int i = 0; i < 10; ++i) {
    a = Book(kToGpu, 1000, a);
    b = Book(kToGpu, 1000, b);
  }
  EXPECT_EQ(a, 19000);  // alone it would end at 10000
  EXPECT_EQ(b, 20000);
}

TEST_F(SimLinkTest, AStreamThatWakesUpLateLosesNothing) {
  // The stream's next slice is ready when the last one ended, not when the
  // stream woke up.
  const int64_t first = Book(kToGpu, 1000, 0);
  EXPECT_EQ(Book(kToGpu, 1000, first), 2000);
}

TEST_F(SimLinkTest, IdleTimeIsNotSavedUp) {
  Book(kToGpu, 1000, 0);
  EXPECT_EQ(Book(kToGpu, 1000, 50000), 51000);
  EXPECT_EQ(Book(kToGpu, 1000, 50000), 52000);
}

TEST_F(SimLinkTest, ANewSpeedCountsFromTheNextSlice) {
  Book(kToGpu, 1000, 0);
  link_.bytes_per_second[0] = 2e9;
  EXPECT_EQ(Book(kToGpu, 1000, 0), 1500);
}

// Guards against a user that writes to a clock to stop other users' copies.
TEST_F(SimLinkTest, AForgedClockDelaysACopyBySixtyFourSlices) {
  constexpr int64_t kSlice = 500'000;  // half a millisecond at this speed
  clocks_.next_free_ns[0] = INT64_MAX;
  EXPECT_EQ(Book(kToGpu, 1000, 5000), 5000 + kMostBookings * kSlice + 1000);
  clocks_.next_free_ns[0] = INT64_MIN;
  EXPECT_EQ(Book(kToGpu, 1000, 5000), 6000);
}

TEST_F(SimLinkTest, SixtyFourStreamsShareALinkExactly) {
  int64_t end = 0;
  for (int i = 0; i < kMostBookings; ++i) end = Book(kToGpu, 500'000, 0);
  EXPECT_EQ(end, kMostBookings * 500'000);
}

TEST_F(SimLinkTest, ALinkWithoutSpeedTakesNoTime) {
  link_.bytes_per_second[0] = 0;
  EXPECT_EQ(Book(kToGpu, 1'000'000, 70), 70);
}

}  // namespace
}  // namespace sluice::device
