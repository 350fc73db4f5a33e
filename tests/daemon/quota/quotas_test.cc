// Tests how much one principal, and all principals together, may take of each
// resource.
#include "daemon/quota/quotas.h"

#include <map>
#include <random>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
const Principal kA{1, ""}, kB{2, ""}, kPod{1, "/kubepods/pod7"};

Quotas Small() {
  Shares shares;
  shares.fill({2, 3});
  return Quotas(shares);
}

TEST(Quotas, OnePrincipalsShareLeavesSomeToOthers) {
  Quotas quotas = Small();
  ASSERT_THAT(quotas.Ask(kA, Resource::kSessions, 2), IsOk());
  EXPECT_THAT(quotas.Ask(kA, Resource::kSessions),
              StatusIs(kExhausted,
                       HasSubstr("user 1 has 2 sessions, and the limit is 2: "
                                 "end some of its processes, or raise sessions "
                                 "in [quota]")));
  EXPECT_THAT(quotas.Ask(kPod, Resource::kSessions), IsOk());
  EXPECT_THAT(quotas.Ask(kB, Resource::kSessions),
              StatusIs(kExhausted, HasSubstr("all users together is 3")));
  EXPECT_EQ(quotas.TakeSnapshot(nullptr)
                .refused[static_cast<size_t>(Resource::kSessions)],
            2u);
  EXPECT_THAT(quotas.Ask(kB, Resource::kRanks), IsOk());
  quotas.GiveBack(kA, Resource::kSessions);
  EXPECT_THAT(quotas.Ask(kB, Resource::kSessions), IsOk());
}

TEST(Quotas, AUserSeesOnlyItsOwnLineOfASnapshot) {
  Quotas quotas = Small();
  ASSERT_THAT(quotas.Ask(kA, Resource::kSessions), IsOk());
  ASSERT_THAT(quotas.Ask(kPod, Resource::kSessions, 2), IsOk());
  EXPECT_FALSE(quotas.Ask(kA, Resource::kSessions).ok());
  const QuotasSnapshot own = quotas.TakeSnapshot(&kA);
  ASSERT_EQ(own.users.size(), 1u);
  EXPECT_EQ(own.users[0].first, kA);
  EXPECT_EQ(own.users[0].second[0], 1);
  EXPECT_EQ(own.used[0], 3);
  EXPECT_EQ(own.refused[0], 1u);
  EXPECT_EQ(quotas.TakeSnapshot(nullptr).users.size(), 2u);
}

TEST(Quotas, ARefusalIsOneLine) {
  Quotas quotas = Small();
  for (size_t i = 0; i < kResources; ++i) {
    if (IsSharedInTurns(static_cast<Resource>(i))) continue;
    const absl::Status refused = quotas.Ask(kA, static_cast<Resource>(i), 3);
    EXPECT_EQ(refused.message().find('\n'), std::string::npos);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("the limit is 2: "));
  }
}

TEST(Quotas, AResourceSharedInTurnsIsCountedAndNeverRefused) {
  Quotas quotas = Small();
  constexpr auto kTime = Resource::kCodecTime;
  ASSERT_THAT(quotas.Ask(kA, Resource::kSessions), IsOk());
  quotas.Charge(kA, kTime, 2'500'000);
  EXPECT_THAT(quotas.May(kA, kTime, 1), IsOk());
  EXPECT_EQ(quotas.used(kA, kTime), 2'500'000);
  EXPECT_EQ(InUnits(kTime, 2'500'000), 2.5);
  quotas.CheckInvariants();
  // The end of the last session forgets the user's use, but not the total.
  quotas.GiveBack(kA, Resource::kSessions);
  EXPECT_TRUE(quotas.TakeSnapshot(nullptr).users.empty());
  quotas.Charge(kA, kTime, 500'000);
  EXPECT_TRUE(quotas.TakeSnapshot(nullptr).users.empty());
  EXPECT_EQ(quotas.used(kTime), 3'000'000);
  quotas.CheckInvariants();
}

TEST(Quotas, RandomUseAddsUpAndNothingIsLeft) {
  Quotas quotas = Small();
  std::mt19937 random(1);
  std::map<std::pair<uint32_t, size_t>, int64_t> taken;
  for (int i = 0; i < 50'000; ++i) {
    const Principal who{static_cast<uint32_t>(random() % 3), ""};
    const size_t what = random() % kResources;
    int64_t& has = taken[{who.uid, what}];
    const auto resource = static_cast<Resource>(what);
    if (IsSharedInTurns(resource)) {
      quotas.Charge(who, resource, 1);
      continue;
    }
    if (random() % 2 == 0) {
      const int64_t amount = random() % 3;
      if (quotas.Ask(who, resource, amount).ok()) has += amount;
    } else if (has > 0) {
      quotas.GiveBack(who, resource);
      --has;
    }
    ASSERT_EQ(quotas.used(who, resource), has);
    ASSERT_LE(quotas.used(who, resource), 2);
    ASSERT_LE(quotas.used(resource), 3);
    quotas.CheckInvariants();
  }
  for (const auto& [key, has] : taken) {
    if (has == 0) continue;
    quotas.GiveBack({key.first, ""}, static_cast<Resource>(key.second), has);
  }
  EXPECT_TRUE(quotas.TakeSnapshot(nullptr).users.empty());
}

// The kernel limits a user's descriptors in flight by the soft limit of open
// files.
TEST(Shares, DescriptorsInFlightStayBelowTheKernelsLimit) {
  for (const int64_t files : {64, 128, 1024, 20'000, 1'000'000}) {
    const Shares shares = SharesOf({}, files);
    const Share flight = shares[static_cast<size_t>(Resource::kInFlight)];
    EXPECT_LE(flight.all, std::max(files - 512, files / 2));
    EXPECT_LE(flight.each * 4, flight.all);
    const Share sessions = shares[static_cast<size_t>(Resource::kSessions)];
    EXPECT_LE(sessions.all * 3, files / 2);
    EXPECT_LE(sessions.each, sessions.all);
    EXPECT_GE(sessions.each, 1);
  }
}

// A session takes up to three descriptors, and an extent up to two.
TEST(Shares, SessionsAndExtentsTogetherStayBelowTheOpenFiles) {
  for (const int64_t files : {64, 128, 1024, 20'000, 1'000'000}) {
    const Share sessions =
        SharesOf({}, files)[static_cast<size_t>(Resource::kSessions)];
    const Share extents = ExtentsOf({}, files);
    EXPECT_LT(3 * sessions.all + 2 * extents.all, files);
    EXPECT_LE(extents.each, extents.all);
    EXPECT_GE(extents.each, 1);
  }
}

// Guards against a few accounts that take all of a resource.
TEST(Shares, FiveUsersAtTheirLimitsLeaveSomeForOthers) {
  for (const int64_t files : {128, 1024, 20'000}) {
    for (const auto what : {Resource::kSessions, Resource::kRanks,
                            Resource::kWaiting, Resource::kInFlight}) {
      Quotas quotas(SharesOf({}, files));
      for (uint32_t uid = 1; uid <= 5; ++uid) {
        while (quotas.Ask({uid, ""}, what).ok()) {
        }
      }
      EXPECT_THAT(quotas.Ask({6, ""}, what), IsOk()) << Name(what) << files;
      const absl::Status refused = quotas.Ask({1, ""}, what);
      EXPECT_THAT(refused, StatusIs(kExhausted, HasSubstr("the limit")));
      quotas.CheckInvariants();
    }
  }
}

TEST(Shares, NothingIsReservedIfOneUserMayHaveAll) {
  Quotas quotas(SharesOf({.ranks = 256}, 20'000));
  EXPECT_THAT(quotas.Ask(kA, Resource::kRanks, 256), IsOk());
}

TEST(Shares, TheConfigurationSetsOnePrincipalsShare) {
  const Shares shares = SharesOf({.sessions = 9, .ranks = 8}, 20'000);
  EXPECT_EQ(shares[static_cast<size_t>(Resource::kSessions)].each, 9);
  EXPECT_EQ(shares[static_cast<size_t>(Resource::kRanks)].each, 8);
}

}  // namespace
}  // namespace sluice::daemon
