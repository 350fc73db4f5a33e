// Tests StreamTimer, which times spans of a stream, on every driver.
#include "kernels/device/stream_timer.h"

#include <memory>

#include "absl/time/clock.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "tests/conformance/fixture.h"

namespace sluice::device {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;

// The rounding error of cuda's times, which are floats of milliseconds.
constexpr absl::Duration kTimerError = absl::Microseconds(100);

class StreamTimerConformance : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    timer_ = std::make_unique<StreamTimer>(driver_.get());
    stream_ = driver_->ComputeStream(kGpu);
  }
  void TearDown() override {
    timer_.reset();
    Conformance::TearDown();
  }

  // Times a span during which the host sleeps for `length`.
  void Span(absl::Duration length) {
    ASSERT_THAT(timer_->Begin(stream_), IsOk());
    ASSERT_THAT(driver_->SynchronizeStream(stream_), IsOk());
    absl::SleepFor(length);
    ASSERT_THAT(timer_->End(stream_), IsOk());
  }

  std::unique_ptr<StreamTimer> timer_;
  Stream stream_;
};

TEST_P(StreamTimerConformance, ReportsSpansInOrderWithTheirLengths) {
  const double before_s = MonotonicSeconds();
  ASSERT_THAT(timer_->Align(stream_), IsOk());
  // Align reads the host's clock at most this long after its event.
  const double late_s = MonotonicSeconds() - before_s;
  Span(absl::Milliseconds(4));
  Span(absl::ZeroDuration());
  Span(absl::Milliseconds(2));
  ASSERT_THAT(timer_->Await(), IsOk());
  double end_s = before_s;
  for (const int least_ms : {4, 0, 2}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto span, timer_->Next());
    ASSERT_TRUE(span.has_value());
    EXPECT_GE(span->length, absl::Milliseconds(least_ms) - kTimerError);
    EXPECT_GE(span->start_s, end_s - absl::ToDoubleSeconds(kTimerError));
    end_s = span->start_s + absl::ToDoubleSeconds(span->length);
  }
  EXPECT_LE(end_s - late_s,
            MonotonicSeconds() + absl::ToDoubleSeconds(kTimerError));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto none, timer_->Next());
  EXPECT_FALSE(none.has_value());
}

TEST_P(StreamTimerConformance, AnUnfinishedSpanHasNoTimeAndNoCallWaits) {
  const CallCounters before = driver_->counters();
  EXPECT_THAT(timer_->End(stream_),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_THAT(timer_->Begin(stream_), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto open, timer_->Next());
  EXPECT_FALSE(open.has_value());
  // The second Begin drops the first.
  ASSERT_THAT(timer_->Begin(stream_), IsOk());
  ASSERT_THAT(timer_->End(stream_), IsOk());
  const CallCounters after = driver_->counters();
  EXPECT_EQ(after.event_synchronize, before.event_synchronize);
  EXPECT_EQ(after.stream_synchronize, before.stream_synchronize);
  ASSERT_THAT(timer_->Await(), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto one, timer_->Next());
  EXPECT_TRUE(one.has_value());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto none, timer_->Next());
  EXPECT_FALSE(none.has_value());
}

INSTANTIATE_TEST_SUITE_P(Drivers, StreamTimerConformance,
                         ::testing::Values("sim", "cuda"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sluice::device
