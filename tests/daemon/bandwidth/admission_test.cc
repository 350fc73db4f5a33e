#include "daemon/bandwidth/admission.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon::bandwidth {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Demand DemandOfBytes(double bytes, double deadline_s, double period_s) {
  return {Bytes(static_cast<int64_t>(bytes)), absl::Seconds(deadline_s),
          absl::Seconds(period_s)};
}

// Three GPUs of 1 MB/s each behind a switch of `width` MB/s.
Topology Tree(double width) {
  std::vector<Link> links = {
      {"switch", std::nullopt, width * 1e6, width * 1e6}};
  for (const char* name : {"gpu0", "gpu1", "gpu2"}) {
    links.push_back({name, 0, 1e6, 1e6});
  }
  return *Topology::Make(links);
}

TEST(Admission, LinksThatAreNeverNarrowerBelongToTheGateAbove) {
  const Topology narrow = Tree(1);
  const Admission one(&narrow, 1);
  const int top = narrow.channel_of(0, kH2d);
  for (int gpu : {1, 2, 3}) {
    EXPECT_EQ(one.gate_of(narrow.channel_of(gpu, kH2d)), top);
  }
  const Topology wide = Tree(2);
  const Admission many(&wide, 1);
  const int own = wide.channel_of(1, kH2d);
  EXPECT_EQ(many.gate_of(own), own);
}

// By rates and deadlines 1/4 + 3/3 is more than the link has; by the demand
// bound they just fit.
TEST(Admission, IsByDemandBoundAndNotByRate) {
  const Topology topology = Tree(1);
  Admission admission(&topology, 1);
  EXPECT_THAT(admission.Admit(0, topology.channel_of(1, kH2d),
                              DemandOfBytes(1e6, 4, 8)),
              IsOk());
  EXPECT_THAT(admission.Admit(1, topology.channel_of(2, kH2d),
                              DemandOfBytes(3e6, 3, 8)),
              IsOk());
  EXPECT_THAT(admission.Admit(2, topology.channel_of(3, kH2d),
                              DemandOfBytes(1e4, 3, 8)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("switch h2d would need 0.00333 MB/s more, 1 "
                                 "of at most 1 are promised")));
  // The other direction is another link.
  EXPECT_THAT(admission.Admit(3, topology.channel_of(3, kD2h),
                              DemandOfBytes(1e6, 1, 1)),
              IsOk());
  admission.CheckInvariants();
}

// Dhall's effect: over a switch of 2, two short ones would delay the one that
// needs its own link all the time. As servers of constant rate they need
// 0.2 / 0.3 each, and fit.
TEST(Admission, OnATreeCountsDomainsByConstantRates) {
  const Topology topology = Tree(2.4);
  Admission admission(&topology, 1);
  EXPECT_THAT(admission.Admit(0, topology.channel_of(1, kH2d),
                              DemandOfBytes(1e6, 1, 4)),
              IsOk());
  const Demand brief = DemandOfBytes(0.2e6, 0.3, 4);
  EXPECT_THAT(admission.Admit(1, topology.channel_of(2, kH2d), brief), IsOk());
  EXPECT_THAT(admission.Admit(2, topology.channel_of(3, kH2d), brief), IsOk());
  const Topology less = Tree(2.3);
  Admission full(&less, 1);
  EXPECT_THAT(full.Admit(0, less.channel_of(1, kH2d), DemandOfBytes(1e6, 1, 4)),
              IsOk());
  EXPECT_THAT(full.Admit(1, less.channel_of(2, kH2d), brief), IsOk());
  EXPECT_THAT(
      full.Admit(2, less.channel_of(3, kH2d), brief),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("switch h2d")));
  full.CheckInvariants();
}

TEST(Admission, NeverPromisesMoreThanItsPart) {
  const Topology topology = Tree(1);
  Admission admission(&topology, 0.9);
  const int channel = topology.channel_of(1, kH2d);
  EXPECT_THAT(admission.Admit(0, channel, DemandOfBytes(0.91e6, 1, 1)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(admission.Admit(1, channel, DemandOfBytes(0.9e6, 1, 1)), IsOk());
  // So much that there is an end to its busy periods.
  EXPECT_DOUBLE_EQ(admission.supply_of(admission.gate_of(channel)), 1e6);
}

TEST(Admission, DemandsComeAndGoWhenTheDomainIsIdle) {
  const Topology topology = Tree(1);
  Admission admission(&topology, 1);
  const int channel = topology.channel_of(1, kH2d);
  const int gate = admission.gate_of(channel);
  EXPECT_FALSE(admission.changing(gate));
  EXPECT_THAT(admission.Admit(0, channel, DemandOfBytes(0.6e6, 1, 1)), IsOk());
  EXPECT_TRUE(admission.changing(gate));
  EXPECT_THAT(admission.Idle(gate), ElementsAre(0));
  EXPECT_FALSE(admission.changing(gate));
  admission.Leave(0);
  // What it was promised may still delay others.
  EXPECT_THAT(admission.Admit(1, channel, DemandOfBytes(0.6e6, 1, 1)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(admission.Idle(gate), IsEmpty());
  EXPECT_EQ(admission.supply_of(gate), 0);
  EXPECT_THAT(admission.Admit(1, channel, DemandOfBytes(0.6e6, 1, 1)), IsOk());
  admission.CheckInvariants();
}

}  // namespace
}  // namespace sluice::daemon::bandwidth
