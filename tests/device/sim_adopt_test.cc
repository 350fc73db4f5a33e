// Tests memory that outlives its driver, and the driver that adopts it.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "tests/device/sim_fixture.h"
#include "tests/support/child.h"

namespace sluice::device {
namespace {

using testing::Child;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

class SimAdopt : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    driver_.reset();
    Restart();
  }
  // Replaces the driver that owns the node's memory by a new one.
  void Restart() {
    owner_.reset();
    auto owner = OpenOwnedSimDriver(directory_.path());
    ASSERT_THAT(owner, IsOk());
    owner_ = *std::move(owner);
  }
  std::unique_ptr<Driver> owner_;
};

TEST_F(SimAdopt, KeptMemoryBelongsToTheNextDriver) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory made, owner_->Create(kGpu0, MiB(4)));
  SLUICE_ASSERT_OK_AND_ASSIGN(UniqueFd kept, owner_->Keep(made));
  SLUICE_ASSERT_OK_AND_ASSIGN(UniqueFd exported, owner_->Export(made));
  const auto rank = Child::Fork([&] {
    SLUICE_CHECK(pwrite(exported.get(), "x", 1, 99) == 1);
    printf("holds\n");
    fflush(stdout);
    pause();
  });
  ASSERT_TRUE(rank->WaitForOutput("holds", absl::Seconds(10)));
  exported.Reset();
  Restart();
  {
    SCOPED_TRACE("other processes hold the memory before its adoption");
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto outside, owner_->HeldOutside());
    EXPECT_EQ(outside.at(kGpu0), MiB(4));
  }
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              owner_->Adopt(std::move(kept), kGpu0, MiB(4)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto outside, owner_->HeldOutside());
  EXPECT_THAT(outside, IsEmpty());
  EXPECT_EQ(owner_->Usage(kGpu0)->used, MiB(4));
  EXPECT_EQ(*owner_->HeldByOthers(memory), true);
  rank->Kill(SIGKILL);
  rank->Join();
  EXPECT_EQ(*owner_->HeldByOthers(memory), false);
  // The memory has the rank's bytes, and can be exported like any other.
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd again, owner_->Export(memory));
  char byte = 0;
  EXPECT_EQ(pread(again.get(), &byte, 1, 99), 1);
  EXPECT_EQ(byte, 'x');
  EXPECT_EQ(*owner_->HeldByOthers(memory), true);
  ASSERT_THAT(owner_->Release(memory), IsOk());
  EXPECT_EQ(owner_->Usage(kGpu0)->used, Bytes(0));
}

TEST_F(SimAdopt, MemoryThatDoesNotMatchOrHasAnOwnerIsNotAdopted) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory made, owner_->Create(kGpu0, MiB(2)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd kept, owner_->Keep(made));
  {
    SCOPED_TRACE("the driver that made the memory still has it");
    EXPECT_THAT(owner_->Adopt(*kept.Duplicate(), kGpu0, MiB(2)),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  Restart();
  EXPECT_THAT(owner_->Adopt(*kept.Duplicate(), kGpu0, MiB(1)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(owner_->Adopt(*kept.Duplicate(), kHost0, MiB(2)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  UniqueFd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(owner_->Adopt(std::move(file), kGpu0, MiB(2)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_THAT(owner_->Adopt(*kept.Duplicate(), kGpu0, MiB(2)), IsOk());
  EXPECT_THAT(owner_->Adopt(*kept.Duplicate(), kGpu0, MiB(2)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(owner_->Usage(kGpu0)->used, MiB(2));
}

}  // namespace
}  // namespace sluice::device
