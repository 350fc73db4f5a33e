// Tests memory that ranks hold outside their leases, on GPUs of a device that
// does not report the holders of memory.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::HasSubstr;

// Two GPUs, each with a pool of 16 MiB and with 4 MiB of spare memory. The
// daemon's own context takes 1 MiB of GPU 0's spare memory.
class OutsideRanks : public ::testing::Test {
 protected:
  static NodeConfig Node() {
    NodeConfig node = SmallNode();
    node.driver = "cuda";
    for (GpuConfig& gpu : node.gpus) gpu.spare = MiB(4);
    return node;
  }
  OutsideRanks() : node_(Node()), answers_(Node(), /*exact=*/false) {
    Ask();
    Ask();
  }

  // Lets the device report `beside_` as GPU 0's memory used outside leases.
  void Ask() {
    node_.clock.Advance(absl::Milliseconds(250));
    const absl::Time now = node_.clock.Now();
    const HeldOutside said = answers_.Add({{{Gpu(0), beside_}}, now});
    node_.Run([&](Core& core) { return core.OutsideKnown(said, now); });
  }
  // Sends a rank's report of used memory: `beside_` and the daemon's extents.
  void Tell(SessionId rank) {
    node_.clock.Advance(absl::Milliseconds(1));
    const auto reply =
        node_.Ask(rank, GpuUseRequest{beside_ + node_.core.pool(Gpu(0)).leased +
                                      node_.core.pool(Gpu(0)).kept});
    ASSERT_TRUE(reply.has_value());
    const auto* noted = std::get_if<NotedReply>(&*reply);
    ASSERT_NE(noted, nullptr);
    EXPECT_EQ(noted->room, Gpu(0));
  }
  Bytes Outside() const { return node_.core.pool(Gpu(0)).outside; }
  std::optional<Bytes> Of(SessionId rank) const {
    return node_.core.session(rank)->outside;
  }

  CoreDriver node_;
  OutsideAnswers answers_;
  Bytes beside_ = MiB(1);
};

// Guards against leasing memory that the rank's own context holds.
TEST_F(OutsideRanks, ARanksReportReducesItsNextLeaseAtOnce) {
  const SessionId a = node_.Attach("demo", 0);
  beside_ += MiB(5);  // the rank's context
  Ask();              // an increase counts when seen twice
  EXPECT_EQ(Outside(), Bytes(0));
  Tell(a);
  EXPECT_EQ(Outside(), MiB(2));  // the spare covers 4 of 6 MiB
  EXPECT_EQ(Of(a), MiB(5));
  EXPECT_THAT(node_.Lease(a, Gpu(0), MiB(16)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("2 MiB are held outside leases, by contexts "
                                 "and buffers of libraries")));
  EXPECT_THAT(node_.Lease(a, Gpu(0), MiB(14)), IsOk());
}

TEST_F(OutsideRanks, MemorySeenByRankAndDeviceCountsOnce) {
  const SessionId a = node_.Attach("demo", 0);
  beside_ += MiB(5);
  Tell(a);
  for (int i = 0; i < 4; ++i) {
    Ask();
    EXPECT_EQ(Outside(), MiB(2));
    EXPECT_EQ(Of(a), MiB(5));
  }
  Tell(a);
  EXPECT_EQ(Outside(), MiB(2));
}

TEST_F(OutsideRanks, ALeaseIsNoPartOfOutsideMemory) {
  const SessionId a = node_.Attach("demo", 0);
  beside_ += MiB(2);
  Tell(a);
  ASSERT_THAT(node_.Lease(a, Gpu(0), MiB(8)), IsOk());
  beside_ += MiB(3);  // a communicator's buffers
  Tell(a);
  EXPECT_EQ(Of(a), MiB(5));
  EXPECT_EQ(Outside(), MiB(2));
}

// A rank's report counts only until the device has been queried twice.
TEST_F(OutsideRanks, AReportThatTheDeviceDoesNotConfirmIsDropped) {
  const SessionId a = node_.Attach("demo", 0);
  node_.clock.Advance(absl::Milliseconds(1));
  node_.Ask(a, GpuUseRequest{GiB(900)});
  EXPECT_EQ(node_.core.pool(Gpu(0)).free, Bytes(0));
  EXPECT_EQ(Of(a), MiB(19));  // all that the daemon does not use
  Ask();
  EXPECT_EQ(node_.core.pool(Gpu(0)).free, Bytes(0));
  Ask();
  EXPECT_EQ(node_.core.pool(Gpu(0)).free, MiB(16));
  EXPECT_EQ(Of(a), Bytes(0));
}

TEST_F(OutsideRanks, EachRankIsChargedItsOwnIncrease) {
  const SessionId a = node_.Attach("one", 0);
  beside_ += MiB(3);
  Tell(a);
  const SessionId b = node_.Attach("two", 0);
  beside_ += MiB(4);
  Tell(b);
  EXPECT_EQ(Of(a), MiB(3));
  EXPECT_EQ(Of(b), MiB(4));
  EXPECT_EQ(Outside(), MiB(4));
  beside_ -= MiB(3);
  node_.Die(a);
  Ask();
  Ask();
  EXPECT_EQ(Of(b), MiB(4));
  EXPECT_EQ(Outside(), MiB(1));
}

TEST_F(OutsideRanks, MemoryUsedBeforeTheFirstRankIsChargedToNoRank) {
  beside_ += MiB(6);  // used by another process
  Ask();
  Ask();
  EXPECT_EQ(Outside(), MiB(3));
  const SessionId a = node_.Attach("demo", 0);
  Tell(a);
  EXPECT_EQ(Of(a), Bytes(0));
  beside_ -= MiB(6);
  Ask();
  beside_ += MiB(2);
  Tell(a);
  EXPECT_EQ(Of(a), MiB(2));
}

TEST_F(OutsideRanks, OnlyRanksMayReport) {
  const SessionId observer = node_.Connect();
  node_.Ask(observer, HelloRequest{.observer = true});
  const auto reply = node_.Ask(observer, GpuUseRequest{MiB(20)});
  EXPECT_THAT(std::get<absl::Status>(*reply),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(Outside(), Bytes(0));
}

TEST_F(OutsideRanks, OutsideMemoryIsSavedForTheNextDaemon) {
  node_.Shadow();
  const SessionId a = node_.Attach("demo", 0);
  beside_ += MiB(5);
  Tell(a);
  node_.CheckSaved();
  node_.Shadow();
  Ask();
  Ask();
  Tell(a);
  node_.CheckSaved();
}

// If the device reports the owner of memory, the reports of ranks are not used.
TEST(OutsideRanksOfSim, ReportsOfRanksAreIgnoredOnSim) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  const auto reply = node.Ask(a, GpuUseRequest{MiB(12)});
  EXPECT_EQ(std::get<NotedReply>(*reply).room, Gpu(0));
  EXPECT_EQ(node.core.pool(Gpu(0)).outside, Bytes(0));
  EXPECT_EQ(node.core.session(a)->outside, std::nullopt);
}

}  // namespace
}  // namespace sluice::daemon
