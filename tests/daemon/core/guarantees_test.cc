// Which guarantees a link admits, and who is told.
#include "daemon/core/guarantees.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const LinkSpeed kLink = {"pcie0", 1e9, 2e9};

TEST(Guarantees, ALinkPromisesLessThanItsSlowerDirectionCarries) {
  EXPECT_THAT(AdmitGuarantee(kLink, 0.5e9, {}), IsOk());
  EXPECT_THAT(AdmitGuarantee(kLink, 0.4e9, {.all = 0.5e9}), IsOk());
  EXPECT_THAT(AdmitGuarantee(kLink, 0.41e9, {.all = 0.5e9}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no guarantee of 410.00 MB/s on link pcie0: "
                                 "500.00 MB/s of at most 900.00 MB/s are "
                                 "promised already; ask for less")));
}

TEST(Guarantees, OneUserGetsHalfOfALink) {
  EXPECT_THAT(AdmitGuarantee(kLink, 0.2e9, {0.3e9, 0.3e9}), IsOk());
  EXPECT_THAT(AdmitGuarantee(kLink, 0.21e9, {0.3e9, 0.3e9}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("promised to its user already")));
  EXPECT_THAT(AdmitGuarantee(kLink, 0x1p59, {}),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(Guarantees, NothingIsPromisedOfALinkWithoutASpeed) {
  EXPECT_THAT(AdmitGuarantee({"nvlink", 0, 0}, 1, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("link nvlink is not known")));
  // What limits is the other direction.
  EXPECT_THAT(AdmitGuarantee({"pcie0", 0, 1e9}, 0.5e9, {}), IsOk());
}

// A guarantee covers each direction.
TEST(Guarantees, EachDirectionHasHalfOfASharedMemoryLink) {
  const LinkSpeed memory = {"memory", 0, 0, "", 2e9};
  EXPECT_THAT(AdmitGuarantee(memory, 0.4e9, {.all = 0.5e9}), IsOk());
  EXPECT_THAT(AdmitGuarantee(memory, 0.41e9, {.all = 0.5e9}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("500.00 MB/s of at most 900.00 MB/s")));
  EXPECT_THAT(
      AdmitGuarantee({"pcie0", 0.5e9, 2e9, "", 2e9}, 0.4e9, {.all = 0.1e9}),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("of at most 450.00 MB/s")));
}

WelcomeReply HelloWithGuarantee(CoreDriver& node, SessionId id,
                                const std::string& job, double guaranteed,
                                uint64_t gpu = 0) {
  return std::get<WelcomeReply>(
      *node.Ask(id, HelloRequest{.job = job,
                                 .gpu = DeviceIndex(gpu),
                                 .guaranteed_bytes_per_second = guaranteed}));
}

// Guards against a guarantee without an upper bound.
TEST(Guarantees, ARankReceivesItsGuaranteeOrTheReasonForNone) {
  CoreDriver node;
  const SessionId greedy = node.Connect(1);
  const WelcomeReply refused =
      HelloWithGuarantee(node, greedy, "greedy", 0x1p59);
  EXPECT_EQ(refused.guaranteed_bytes_per_second, 0);
  EXPECT_THAT(refused.guarantee_refused, HasSubstr("no guarantee of"));
  EXPECT_EQ(node.core.session(greedy)->guaranteed_bytes_per_second, 0);
  const WelcomeReply granted =
      HelloWithGuarantee(node, node.Connect(2), "modest", 0.5e9);
  EXPECT_EQ(granted.guaranteed_bytes_per_second, 0.5e9);
  EXPECT_THAT(granted.guarantee_refused, IsEmpty());
  const WelcomeReply none =
      HelloWithGuarantee(node, node.Connect(3), "none", 0);
  EXPECT_EQ(none.guaranteed_bytes_per_second, 0);
  EXPECT_THAT(none.guarantee_refused, IsEmpty());
}

TEST(Guarantees, APromiseEndsWithItsSession) {
  CoreDriver node;
  const SessionId first = node.Connect(1);
  HelloWithGuarantee(node, first, "a", 0.5e9);
  EXPECT_EQ(HelloWithGuarantee(node, node.Connect(1), "b", 0.1e9)
                .guaranteed_bytes_per_second,
            0);
  // Of another link.
  EXPECT_EQ(HelloWithGuarantee(node, node.Connect(1), "c", 0.5e9, /*gpu=*/1)
                .guaranteed_bytes_per_second,
            0.5e9);
  node.Run([&](Core& to) { return to.SocketEnded(first, node.clock.Now()); });
  EXPECT_EQ(HelloWithGuarantee(node, node.Connect(1), "d", 0.1e9)
                .guaranteed_bytes_per_second,
            0.1e9);
}

TEST(Guarantees, GpusOfOneLinkShareItsGuarantees) {
  NodeConfig config = SmallNode();
  config.gpus[1].link = "pcie0";
  CoreDriver node(config);
  HelloWithGuarantee(node, node.Connect(1), "a", 0.5e9, /*gpu=*/0);
  EXPECT_EQ(HelloWithGuarantee(node, node.Connect(2), "b", 0.5e9, /*gpu=*/1)
                .guaranteed_bytes_per_second,
            0);
  EXPECT_EQ(HelloWithGuarantee(node, node.Connect(2), "c", 0.4e9, /*gpu=*/1)
                .guaranteed_bytes_per_second,
            0.4e9);
}

TEST(Guarantees, ALinkAboveOthersPromisesToAllBelowIt) {
  NodeConfig config = SmallNode();
  config.links = {{"pcie0", 1e9, 1e9, "switch"},
                  {"pcie1", 1e9, 1e9, "switch"},
                  {"switch", 1e9, 1e9}};
  CoreDriver node(config);
  HelloWithGuarantee(node, node.Connect(1), "a", 0.5e9, /*gpu=*/0);
  const WelcomeReply refused =
      HelloWithGuarantee(node, node.Connect(2), "b", 0.5e9, /*gpu=*/1);
  EXPECT_EQ(refused.guaranteed_bytes_per_second, 0);
  EXPECT_THAT(refused.guarantee_refused, HasSubstr("on link switch: 500.00 "
                                                   "MB/s of at most"));
  EXPECT_EQ(HelloWithGuarantee(node, node.Connect(2), "c", 0.4e9, /*gpu=*/1)
                .guaranteed_bytes_per_second,
            0.4e9);
}

// A GPU whose own link has no speed, below one that has.
TEST(Guarantees, ALinkWithoutASpeedIsPassed) {
  NodeConfig config = SmallNode();
  config.links = {{"pcie0", 0, 0, "switch"}, {"switch", 0, 0, "", 2e9}};
  CoreDriver node(config);
  EXPECT_EQ(HelloWithGuarantee(node, node.Connect(1), "a", 0.5e9)
                .guaranteed_bytes_per_second,
            0.5e9);
}

}  // namespace
}  // namespace sluice::daemon
