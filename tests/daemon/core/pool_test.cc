// Tests which extents a pool reuses or destroys, and that a refusal scans none.
#include "daemon/core/pool/pool.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::ElementsAre;

constexpr PrincipalId kOne(1), kOther(2);
constexpr SessionId kSession(1);

// Returns a pool with `count` granules that a living process freed and may
// still map.
Pool WithKept(int count, uint64_t& next_extent) {
  Pool pool({PoolKind::kHost, 0}, KiB(64) * 10'002, MiB(4));
  std::vector<ExtentId> leased;
  for (int i = 0; i < count; ++i) {
    const auto parts = pool.Choose(kOne, KiB(64), KiB(64));
    EXPECT_THAT(parts.status(), IsOk());
    const auto taken = pool.Take(kOne, *parts, ExtentId(next_extent++));
    for (const Slice& slice : taken.make) {
      pool.Made(slice.id);
      pool.AddHolder(slice.id, kSession);
      leased.push_back(slice.id);
    }
  }
  for (ExtentId id : leased) pool.Return(id, absl::UnixEpoch());
  return pool;
}

// Returns the shortest duration of 200 runs, as a busy machine delays some.
double SecondsOf(const std::function<void()>& work) {
  double least = 1e9;
  for (int i = 0; i < 200; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - start;
    least = std::min(least, took.count());
  }
  return least;
}

TEST(Pool, ARefusalTakesNoLongerWithTenThousandIdleExtents) {
  uint64_t next_extent = 1;
  Pool few = WithKept(2, next_extent), many = WithKept(10'000, next_extent);
  // The pool refuses another principal, and also the principal that had the
  // granules.
  for (const PrincipalId who : {kOther, kOne}) {
    const auto refusal = [&](Pool& pool, Bytes size) {
      return SecondsOf([&, size] {
        EXPECT_THAT(pool.Choose(who, size, size),
                    StatusIs(absl::StatusCode::kResourceExhausted));
      });
    };
    const double beside_few = refusal(few, KiB(64) * 10'003);
    EXPECT_LE(refusal(many, KiB(64) * 10'003), 10 * beside_few);
  }
  // The lease would fit without the granules that living processes may map.
  const double alone = SecondsOf([&] {
    EXPECT_THAT(few.Choose(kOther, KiB(64) * 10'001, KiB(64)),
                StatusIs(absl::StatusCode::kResourceExhausted));
  });
  EXPECT_LE(SecondsOf([&] {
              EXPECT_THAT(many.Choose(kOther, KiB(64) * 3, KiB(64)),
                          StatusIs(absl::StatusCode::kResourceExhausted));
            }),
            10 * alone);
  EXPECT_EQ(many.UsableBy(kOther), KiB(128));
  many.CheckInvariants();
}

TEST(Pool, FreedExtentsAreDestroyedOldestFirst) {
  uint64_t next_extent = 1;
  Pool pool = WithKept(10'000, next_extent);
  for (ExtentId id : pool.HolderGone(kSession).alone) {
    pool.Back(id, absl::UnixEpoch());
  }
  pool.CheckInvariants();
  EXPECT_EQ(pool.UsableBy(kOther), pool.total());
  const auto parts = pool.Choose(kOther, KiB(64) * 4, KiB(256));
  EXPECT_THAT(parts.status(), IsOk());
  ASSERT_EQ(parts->destroy.size(), 2u);
  EXPECT_EQ(parts->destroy[0], ExtentId(1));
  EXPECT_EQ(parts->destroy[1], ExtentId(2));
  pool.Take(kOther, *parts, ExtentId(next_extent));
  EXPECT_GT(pool.OwnedBy(kOne), 0u);
  pool.CheckInvariants();
}

TEST(Pool, TheNewestIdleExtentIsReusedUnlessFreeMemoryIsWithheld) {
  Pool pool({PoolKind::kHost, 0}, KiB(192), KiB(128));
  const ExtentId kept(3);
  for (const ExtentId id : {ExtentId(1), ExtentId(2), kept}) {
    pool.Take(kOne, *pool.Choose(kOne, KiB(64), KiB(64)), id);
    pool.Made(id);
    if (id != kept) pool.AddHolder(id, kSession);
  }
  for (const ExtentId id : {ExtentId(1), ExtentId(2), kept}) {
    EXPECT_EQ(pool.Return(id, absl::UnixEpoch()), id != kept);
  }
  const auto reused = [&](Bytes size, Bytes withheld) {
    return pool.Choose(kOne, size, size, withheld)->reuse;
  };
  EXPECT_THAT(reused(KiB(64), Bytes(0)), ElementsAre(kept));
  EXPECT_THAT(reused(KiB(64), KiB(64)), ElementsAre(ExtentId(2)));
  EXPECT_THAT(reused(KiB(128), Bytes(0)), ElementsAre(kept, ExtentId(2)));
}

}  // namespace
}  // namespace sluice::daemon
