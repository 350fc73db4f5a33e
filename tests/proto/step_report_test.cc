#include <gtest/gtest.h>

#include <vector>

#include "proto/wire.h"
#include "tests/proto/session_text.h"

namespace sluice {
namespace {

StepReport EveryFieldDiffers() {
  return {.step = 1,
          .seconds = 2,
          .h2d = Bytes(3),
          .d2h = Bytes(4),
          .stall_seconds = 5,
          .grant_wait_seconds = 6,
          .hbm_peak = Bytes(7),
          .host_peak = Bytes(8),
          .tokens = 9,
          .loss = 10,
          .plan_mismatches = 11,
          .totals = {.reports = 12,
                     .h2d = Bytes(13),
                     .d2h = Bytes(14),
                     .stall_seconds = 15,
                     .grant_wait_seconds = 16,
                     .tokens = 17,
                     .plan_mismatches = 18}};
}

int FieldsNotSet(const google::protobuf::MessageLite& message) {
  const auto described = testing::Described(message);
  std::vector<const google::protobuf::FieldDescriptor*> set;
  described->GetReflection()->ListFields(*described, &set);
  return described->GetDescriptor()->field_count() -
         static_cast<int>(set.size());
}

TEST(StepReport, AReportSurvivesARoundTrip) {
  const StepReport report = EveryFieldDiffers();
  wire::StepReport sent;
  wire::ToWire(report, &sent);
  EXPECT_EQ(wire::FromWire(sent), report);
}

TEST(StepReport, NoFieldOfTheMessageIsLeftOut) {
  wire::StepReport sent;
  wire::ToWire(EveryFieldDiffers(), &sent);
  // Only map_seconds, which the session adds later, is not set.
  EXPECT_EQ(FieldsNotSet(sent), 1);
  EXPECT_EQ(FieldsNotSet(sent.totals()), 0);
}

TEST(StepTotals, TheNextReportIncludesTheStepsOfALostOne) {
  const StepReport step = EveryFieldDiffers();
  StepTotals told, now;
  for (int i = 0; i < 3; ++i) now = Plus(now, step);
  const StepTotals more = Since(told, now);
  EXPECT_EQ(more, now);
  EXPECT_EQ(more.reports, 3);
  EXPECT_EQ(more.tokens, 27);
  EXPECT_EQ(Since(now, Plus(now, step)), Plus({}, step));
}

TEST(StepTotals, DifferencesAreNeverNegativeNorAboveTheirLimit) {
  StepTotals most = {.reports = INT64_MAX,
                     .stall_seconds = 1e300,
                     .tokens = INT64_MAX,
                     .plan_mismatches = INT64_MAX};
  EXPECT_EQ(Since(most, {}), StepTotals{});
  const StepTotals more = Since({}, most);
  EXPECT_EQ(more.reports, kMostMissed);
  EXPECT_EQ(more.stall_seconds, kMaxStepSeconds);
  EXPECT_EQ(more.tokens, kMaxStepCount);
  EXPECT_EQ(more.plan_mismatches, kMaxStepCount);
}

TEST(StepTotals, SumsStopAtTheirLimitInsteadOfOverflowing) {
  const StepReport large = {.h2d = Bytes(int64_t{1} << 60),
                            .tokens = kMaxStepCount};
  StepTotals sum;
  for (int i = 0; i < 10; ++i) sum = Plus(sum, large);
  EXPECT_EQ(sum.h2d, Bytes(int64_t{1} << 61));
}

}  // namespace
}  // namespace sluice
