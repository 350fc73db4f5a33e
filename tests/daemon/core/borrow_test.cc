// Tests leases of host memory of a NUMA node that is not the GPU's.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/shortage.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;

// A node with a GPU and 32 MiB on each of two NUMA nodes.
class Borrow : public ::testing::Test {
 protected:
  static NodeConfig TwoSockets() {
    NodeConfig node = SmallNode();
    node.gpus[1].numa = NumaIndex(1);
    node.hosts.push_back({NumaIndex(1), MiB(32)});
    return node;
  }
  Bytes Borrowable(SessionId id) {
    return node_.core.leases().Borrowable(*node_.core.session(id), Host(1));
  }
  bool Lease(SessionId id, uint64_t numa, Bytes size) {
    const absl::Status leased = node_.Lease(id, Host(numa), size).status();
    if (!leased.ok()) {
      EXPECT_EQ(ShortageOf(leased), Shortage::kHostMemory) << leased;
    }
    return leased.ok();
  }
  CoreDriver node_{TwoSockets()};
};

TEST_F(Borrow, AJobAloneLeasesHalfOfTheOtherNode) {
  const SessionId alone = node_.Attach("alone", 0);
  EXPECT_EQ(Borrowable(alone), MiB(16));
  EXPECT_FALSE(Lease(alone, 1, MiB(20)));
  EXPECT_TRUE(Lease(alone, 1, MiB(12)));
  EXPECT_EQ(Borrowable(alone), MiB(4));
  EXPECT_FALSE(Lease(alone, 1, MiB(8)));
  EXPECT_TRUE(Lease(alone, 0, MiB(32)))
      << "a job may lease all memory of its own node";
}

TEST_F(Borrow, ASecondJobEndsBorrowingAndLeasesWhatIsFree) {
  const SessionId first = node_.Attach("first", 0);
  ASSERT_TRUE(Lease(first, 1, MiB(8)));
  const SessionId second = node_.Attach("second", 0, 1, 2, 1);
  EXPECT_EQ(Borrowable(first), Bytes(0));
  EXPECT_FALSE(Lease(first, 1, MiB(4)));
  EXPECT_FALSE(Lease(second, 0, MiB(4)));
  EXPECT_TRUE(Lease(second, 1, MiB(24)));
}

TEST_F(Borrow, FreedBorrowedMemoryGoesToTheNextJob) {
  const SessionId first = node_.Attach("first", 0);
  const auto lease = node_.Lease(first, Host(1), MiB(16));
  ASSERT_THAT(lease.status(), IsOk());
  node_.Ask(first, FreeRequest{lease->lease});
  EXPECT_TRUE(Lease(node_.Attach("second", 0, 1, 2, 1), 1, MiB(32)));
}

TEST_F(Borrow, OnlyACompleteJobOnOneNodeMayBorrow) {
  const SessionId rank = node_.Attach("pair", 0, 2);
  EXPECT_EQ(Borrowable(rank), Bytes(0)) << "rank 1 may come to the other node";
  const SessionId same = node_.Attach("pair", 1, 2);
  EXPECT_EQ(Borrowable(rank), MiB(16));
  node_.Die(same);
  node_.Attach("pair", 1, 2, 1, 1);
  EXPECT_EQ(Borrowable(rank), Bytes(0));
  EXPECT_FALSE(Lease(rank, 1, MiB(4)));
}

}  // namespace
}  // namespace sluice::daemon
