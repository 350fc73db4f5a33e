#include "proto/step_report.h"

#include <gtest/gtest.h>

#include <vector>

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
          .plan_mismatches = 11};
}

TEST(StepReport, ComesBackFromTheWireAsItWas) {
  const StepReport report = EveryFieldDiffers();
  wire::StepReport sent;
  wire::ToWire(report, &sent);
  EXPECT_EQ(wire::FromWire(sent), report);
}

TEST(StepReport, NoFieldOfTheMessageIsLeftOut) {
  wire::StepReport sent;
  wire::ToWire(EveryFieldDiffers(), &sent);
  std::vector<const google::protobuf::FieldDescriptor*> set;
  sent.GetReflection()->ListFields(sent, &set);
  // map_seconds is the session's own: a step does not tell it.
  EXPECT_EQ(static_cast<int>(set.size()),
            sent.GetDescriptor()->field_count() - 1);
}

}  // namespace
}  // namespace sluice
