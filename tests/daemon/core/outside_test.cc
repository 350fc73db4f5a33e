// Tests memory held outside leases: it is not free until the device reports its
// release.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Time kFirst = absl::UnixEpoch();
constexpr absl::Duration kLater = absl::Seconds(1);

// Two GPUs with 2 MiB of spare memory each. No holders of memory are reported.
OutsideAnswers OnCuda() {
  NodeConfig node = SmallNode();
  for (GpuConfig& gpu : node.gpus) gpu.spare = MiB(2);
  return OutsideAnswers(node, /*exact=*/false);
}

void Say(CoreDriver& node, std::map<PoolId, Bytes> pools) {
  const absl::Time now = node.clock.Now();
  const HeldOutside held{std::move(pools), now};
  node.Run([&](Core& core) { return core.OutsideKnown(held, now); });
}

// Guards against a pool that reports memory of outside processes as free.
TEST(Outside, OutsideMemoryIsNotFreeUntilItIsReleased) {
  CoreDriver node;
  Say(node, {{Gpu(0), MiB(10)}, {Host(0), MiB(3)}});
  const PoolSnapshot pool = node.core.pool(Gpu(0));
  EXPECT_EQ(pool.outside, MiB(10));
  EXPECT_EQ(pool.free, MiB(6));
  EXPECT_EQ(node.core.pool(Gpu(1)).free, MiB(16));
  EXPECT_EQ(node.core.pool(Host(0)).free, MiB(29));
  const SessionId a = node.Attach("demo", 0);
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(7)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("free 6 MiB of 16 MiB"),
                             HasSubstr("10 MiB are held outside"))));
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(6)), IsOk());
  Say(node, {});
  EXPECT_EQ(node.core.pool(Gpu(0)).outside, Bytes(0));
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(10)), IsOk());
}

TEST(Outside, AFaultyGpuHasNoFreeMemoryAndNoRanks) {
  NodeConfig config = SmallNode();
  config.gpus[1].fault = "GPU 1 is lost: nvidia-smi -q";
  CoreDriver node(config);
  EXPECT_EQ(node.core.pool(Gpu(1)).free, Bytes(0));
  Say(node, {});
  EXPECT_EQ(node.core.pool(Gpu(1)).free, Bytes(0));
  EXPECT_EQ(node.core.pool(Gpu(0)).free, MiB(16));
  const auto reply =
      node.Ask(node.Connect(), HelloRequest{.job = "demo",
                                            .rank = Rank(0),
                                            .world_size = 1,
                                            .local_ranks = 1,
                                            .gpu = DeviceIndex(1)});
  EXPECT_THAT(
      std::get<absl::Status>(*reply),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nvidia-smi -q")));
  node.Attach("demo", 0);
}

TEST(Outside, OutsideMemoryIsShownWithItsAgeAndItsEndIsLogged) {
  CoreDriver node;
  EXPECT_EQ(node.core.TakeSnapshot(nullptr, node.clock.Now()).outside_at,
            absl::InfinitePast());
  Say(node, {{Gpu(0), MiB(10)}});
  const absl::Time seen = node.clock.Now();
  node.clock.Advance(absl::Seconds(3));
  EXPECT_EQ(node.core.TakeSnapshot(nullptr, node.clock.Now()).outside_at, seen);
  EXPECT_THAT(node.core.log().events().back().text,
              HasSubstr("GPU 0: of 16 MiB, 10 MiB are held outside leases, by "
                        "processes without a session, such as ranks"));
  Say(node, {{Gpu(0), MiB(2)}});  // logs nothing
  Say(node, {});
  EXPECT_THAT(node.core.log().events().back().text,
              HasSubstr("GPU 0: nothing is held outside leases any more"));
  EXPECT_EQ(node.core.log().last(), 2);
}

// The device's figure may be older than the leases.
TEST(Outside, OutsideMemoryIsAtMostThePoolMinusLeasedAndKept) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease, node.Lease(a, Gpu(0), MiB(8)));
  Say(node, {{Gpu(0), MiB(12)}});
  EXPECT_EQ(node.core.pool(Gpu(0)).outside, MiB(8));
  EXPECT_EQ(node.core.pool(Gpu(0)).free, Bytes(0));
  node.held = Held::kNo;
  node.Ask(a, FreeRequest{lease.lease});
  // The freed memory stays with its principal, which leases it again.
  EXPECT_EQ(node.core.pool(Gpu(0)).outside, MiB(8));
  EXPECT_EQ(node.core.pool(Gpu(0)).free, MiB(8));
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(8)), IsOk());
}

TEST(OutsideAnswers, AnIncreaseCountsWhenItIsSeenTwice) {
  OutsideAnswers answers = OnCuda();
  EXPECT_EQ(answers.Add({{{Gpu(0), MiB(3)}}, kFirst}).pools,
            (std::map<PoolId, Bytes>{{Gpu(0), MiB(1)}}));
  const auto extent = answers.Add({{{Gpu(0), MiB(9)}}, kFirst + kLater});
  EXPECT_EQ(extent.pools, (std::map<PoolId, Bytes>{{Gpu(0), MiB(1)}}));
  const auto lasting = answers.Add({{{Gpu(0), MiB(8)}}, kFirst + 2 * kLater});
  EXPECT_EQ(lasting.pools, (std::map<PoolId, Bytes>{{Gpu(0), MiB(6)}}));
  // A decrease counts at once. The spare memory covers the 2 MiB that are left.
  EXPECT_EQ(answers.Add({{{Gpu(0), MiB(2)}}, kFirst + 3 * kLater}).pools,
            (std::map<PoolId, Bytes>()));
}

TEST(OutsideAnswers, AnIncreaseCountsAtOnceIfTheDeviceKnowsItsOwner) {
  OutsideAnswers answers(SmallNode(), /*exact=*/true);
  answers.Add({{}, kFirst});
  EXPECT_EQ(answers.Add({{{Host(0), MiB(9)}}, kFirst + kLater}).pools,
            (std::map<PoolId, Bytes>{{Host(0), MiB(9)}}));
}

// Guards against a lost GPU that makes every pool's figure stale.
TEST(OutsideAnswers, AGpuWithoutAnAnswerKeepsItsValueAndOthersAreUpdated) {
  OutsideAnswers answers = OnCuda();
  answers.Add({{{Gpu(0), MiB(5)}, {Gpu(1), MiB(5)}}, kFirst});
  const absl::Status lost = absl::UnavailableError("lost");
  HeldOutside said;
  for (int again = 1; again <= 2; ++again) {
    said = answers.Add(
        {{{Gpu(0), lost}, {Gpu(1), MiB(4)}}, kFirst + again * kLater});
  }
  EXPECT_EQ(said.pools,
            (std::map<PoolId, Bytes>{{Gpu(0), MiB(3)}, {Gpu(1), MiB(2)}}));
  EXPECT_EQ(said.at, kFirst + 2 * kLater);
  EXPECT_EQ(said.silent, (std::map<PoolId, absl::Time>{{Gpu(0), kFirst}}));
  said = answers.Add({{{Gpu(0), MiB(2)}}, kFirst + 3 * kLater});
  EXPECT_TRUE(said.silent.empty() && said.pools.empty());
}

TEST(Outside, EachPoolHasTheTimeOfItsLastAnswer) {
  CoreDriver node;
  const absl::Time now = node.clock.Now();
  node.Run([&](Core& core) {
    return core.OutsideKnown({.pools = {{Gpu(0), MiB(1)}},
                              .at = now,
                              .silent = {{Gpu(0), now - kLater}}},
                             now);
  });
  EXPECT_EQ(node.core.pool(Gpu(0)).outside_at, now - kLater);
  EXPECT_EQ(node.core.pool(Gpu(1)).outside_at, now);
  node.CheckSaved();
}

TEST(Outside, OutsideMemoryIsPartOfTheSavedState) {
  CoreDriver node;
  Say(node, {{Gpu(0), MiB(12)}, {Host(0), MiB(1)}});
  node.CheckSaved();
  Core read(node.core.config(), node.clock.Now());
  read.Load(node.core.Save());
  EXPECT_EQ(read.pool(Gpu(0)).free, MiB(4));
}

}  // namespace
}  // namespace sluice::daemon
