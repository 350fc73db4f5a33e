// Tests memory that is reserved for a user, and which principals get it.
#include "daemon/core/policy.h"
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

constexpr auto kNoRoom = absl::StatusCode::kResourceExhausted;
constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;

class Reserved : public ::testing::Test {
 protected:
  absl::Status Reserve(PoolId pool, const Principal& whose, Bytes bytes) {
    return node_.Change(ReservationChange{pool, whose, bytes, "root"});
  }
  absl::Status Lease(SessionId session, Bytes size, PoolId pool = Gpu(0)) {
    return node_.Lease(session, pool, size).status();
  }
  Bytes Withheld(PoolId pool = Gpu(0)) {
    return node_.core.pool(pool).reserved;
  }

  CoreDriver node_;  // 16 MiB per GPU
  const SessionId alice_ = node_.Attach("a", 0, 1, 1);
  const SessionId bob_ = node_.Attach("b", 0, 1, 2);
};

TEST_F(Reserved, OnlyItsUserLeasesReservedMemory) {
  ASSERT_THAT(Reserve(Gpu(0), {1, ""}, MiB(8)), IsOk());
  EXPECT_THAT(
      Lease(bob_, MiB(12)),
      StatusIs(kNoRoom, AllOf(HasSubstr("free 16 MiB of 16 MiB, of which 8 MiB "
                                        "are reserved for others"),
                              HasSubstr("GPU 0: asked 12 MiB"))));
  EXPECT_THAT(Lease(bob_, MiB(8)), IsOk());
  EXPECT_THAT(Lease(bob_, KiB(64)), StatusIs(kNoRoom, HasSubstr("reserved")));
  EXPECT_THAT(Lease(alice_, MiB(4)), IsOk());
  EXPECT_EQ(Withheld(), MiB(4)) << "a lease takes the reserved memory first";
  EXPECT_THAT(Lease(alice_, MiB(4)), IsOk());
  EXPECT_EQ(Withheld(), Bytes(0));
}

TEST_F(Reserved, FreedMemoryOfItsUserIsReservedAgain) {
  ASSERT_THAT(Reserve(Gpu(0), {1, ""}, MiB(8)), IsOk());
  ASSERT_THAT(Lease(alice_, MiB(8)), IsOk());
  node_.Die(alice_);
  EXPECT_EQ(Withheld(), MiB(8));
  EXPECT_THAT(Lease(bob_, MiB(12)), StatusIs(kNoRoom, HasSubstr("reserved")));
  EXPECT_THAT(Lease(node_.Attach("again", 0, 1, 1), MiB(16)), IsOk());
}

TEST_F(Reserved, UnreservedMemoryIsForAllUsers) {
  ASSERT_THAT(Reserve(Host(0), {1, ""}, MiB(8)), IsOk());
  ASSERT_THAT(Reserve(Host(0), {2, ""}, MiB(8)), IsOk());
  EXPECT_EQ(node_.core.ledger().UsableBy(Host(0), {1, "/a"}), MiB(24));
  EXPECT_EQ(node_.core.ledger().UsableByAnyone(Host(0)), MiB(16));
  EXPECT_THAT(Lease(node_.Attach("c", 0, 1, 3), MiB(20), Host(0)),
              StatusIs(kNoRoom, HasSubstr("reserved for others")));
  EXPECT_THAT(Lease(alice_, MiB(24), Host(0)), IsOk());
  EXPECT_THAT(Lease(bob_, MiB(8), Host(0)), IsOk());
}

// Lingering memory is charged already, so leasing it takes no free memory.
TEST_F(Reserved, AnotherUserMayLeaseItsLingeringMemoryAgain) {
  node_.held = Held::kYes;
  const auto lease = node_.Lease(bob_, Gpu(0), MiB(8));
  ASSERT_THAT(lease.status(), IsOk());
  ASSERT_THAT(Reserve(Gpu(0), {1, ""}, MiB(8)), IsOk());
  node_.Ask(bob_, FreeRequest{lease->lease});
  EXPECT_THAT(Lease(bob_, MiB(12)), StatusIs(kNoRoom, HasSubstr("reserved")));
  EXPECT_THAT(Lease(bob_, MiB(8)), IsOk());
}

TEST_F(Reserved, AReservationAboveFreeMemoryIsRefused) {
  ASSERT_THAT(Lease(bob_, MiB(4)), IsOk());
  EXPECT_THAT(
      Reserve(Gpu(0), {1, ""}, MiB(16)),
      StatusIs(kRefused,
               HasSubstr("GPU 0: 16 MiB cannot be reserved for user 1: with "
                         "what others have reserved, 16 MiB would have to be "
                         "free, but only 12 MiB of 16 MiB are; reserve less")));
  ASSERT_THAT(Reserve(Gpu(0), {1, ""}, MiB(8)), IsOk());
  EXPECT_THAT(Reserve(Gpu(0), {3, ""}, MiB(8)),
              StatusIs(kRefused, HasSubstr("reserved, 16 MiB would")));
  EXPECT_THAT(Reserve(Gpu(0), {3, ""}, MiB(4)), IsOk());
  EXPECT_THAT(Reserve(Gpu(0), {1, ""}, Bytes(0)), IsOk());
  EXPECT_THAT(Reserve(Gpu(0), {2, ""}, MiB(12)), IsOk())
      << "4 MiB of them are there, since the user has leased them";
  EXPECT_THAT(Reserve(Gpu(7), {1, ""}, MiB(1)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no GPU 7")));
  EXPECT_THAT(Reserve(Gpu(0), {1, ""}, Bytes(100)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("not a multiple of the granularity")));
}

TEST_F(Reserved, AReservationOfACgroupIsNotForItsWholeUser) {
  ASSERT_THAT(Reserve(Gpu(0), {1, "/a"}, MiB(8)), IsOk());
  const SessionId elsewhere = node_.Connect(1, "/b");
  node_.Ask(elsewhere, HelloRequest{.job = "e"});
  EXPECT_THAT(Lease(elsewhere, MiB(12)),
              StatusIs(kNoRoom, HasSubstr("reserved")));
  EXPECT_THAT(Lease(alice_, MiB(12)), IsOk());
}

TEST_F(Reserved, ReservationsAreShownAndKeptByTheNextDaemon) {
  ASSERT_THAT(Reserve(Gpu(1), {1, ""}, MiB(8)), IsOk());
  const Principal other{2, "/a"};
  const absl::Time now = node_.clock.Now();
  const Snapshot all = node_.core.TakeSnapshot(nullptr, now);
  ASSERT_EQ(all.reservations.size(), 1u);
  EXPECT_EQ(all.reservations[0].by.who, "root");
  EXPECT_EQ(all.gpus[1].pool.reserved, MiB(8));
  EXPECT_EQ(all.events.back().text,
            "GPU 1: 8 MiB reserved for user 1, set by root");
  EXPECT_TRUE(node_.core.TakeSnapshot(&other, now).reservations.empty());
  CoreDriver next;
  ASSERT_THAT(next.core.SetPolicy(node_.core.live_policy().policy(), now),
              IsOk());
  EXPECT_EQ(next.core.live_policy().policy(),
            node_.core.live_policy().policy());
  EXPECT_THAT(next.Lease(next.Attach("b", 0, 1, 2), Gpu(1), MiB(12)).status(),
              StatusIs(kNoRoom, HasSubstr("reserved for others")));
}

TEST_F(Reserved, APolicyForAnotherNodeIsRefused) {
  Policy policy;
  policy.reservations[Gpu(0)][{1, ""}] = {MiB(20), {}};
  EXPECT_THAT(node_.core.ledger().reservations().size(), 0u);
  CoreDriver next;
  EXPECT_THAT(next.core.SetPolicy(policy, next.clock.Now()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("reserves 20 MiB of GPU 0, which has 16 MiB: "
                                 "take it out of its file")));
  policy.reservations = {{Gpu(5), {{{1, ""}, {MiB(1), {}}}}}};
  EXPECT_THAT(next.core.SetPolicy(policy, next.clock.Now()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("which is not here")));
}

}  // namespace
}  // namespace sluice::daemon
