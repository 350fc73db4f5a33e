// Tests which processes trust the shared state of a simulated node.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "kernels/device/sim/state.h"
#include "tests/device/sim_fixture.h"

namespace sluice::device {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

class SimBooks : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    const int fd = open(directory_.File("node.state").c_str(), O_RDWR);
    ASSERT_GE(fd, 0);
    void* page = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE,
                      MAP_SHARED, fd, 0);
    close(fd);
    ASSERT_NE(page, MAP_FAILED);
    state_ = static_cast<SharedState*>(page);
  }
  void TearDown() override { munmap(state_, sizeof(SharedState)); }

  std::unique_ptr<Driver> OpenOwned() const {
    auto driver = OpenOwnedSimDriver(directory_.path());
    EXPECT_THAT(driver, IsOk());
    return driver.ok() ? *std::move(driver) : nullptr;
  }

  SharedState* state_ = nullptr;
};

// Guards against a process that overwrites the state and so ends the daemon or
// makes its Create calls fail.
TEST_F(SimBooks, OwnerIgnoresLaterWritesToTheState) {
  const auto owner = OpenOwned();
  state_->granularity = 0;
  state_->host_memory = 0;
  state_->gpu_count = 1u << 31;
  state_->gpus[0].memory = 0;
  state_->gpus[0].lost = 1;
  std::memset(static_cast<void*>(state_->failures), 'C',
              sizeof(state_->failures));
  state_->failures_armed = 1;
  const auto memory = owner->Create(kGpu0, MiB(8));
  ASSERT_THAT(memory, IsOk());
  EXPECT_THAT(owner->Create(kGpu0, KiB(64)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("8 MiB of 8 MiB used")));
  ASSERT_THAT(owner->Create(kHost0, MiB(16)), IsOk());
  EXPECT_EQ(owner->Usage(kGpu0)->used, MiB(8));
  EXPECT_EQ(owner->Usage(kHost1)->total, MiB(16));
  ASSERT_THAT(owner->Release(*memory), IsOk());
  EXPECT_EQ(owner->Usage(kGpu0)->used, Bytes(0));
}

// A failure that is armed before the owner starts applies to the owner, so that
// tests can make a daemon's own calls fail.
TEST_F(SimBooks, OwnerTakesOnlyFailuresThatWereArmedBeforeItsStart) {
  ASSERT_THAT(node_->FailCall("Create", 2), IsOk());
  const auto owner = OpenOwned();
  EXPECT_THAT(owner->Create(kGpu0, KiB(64)), IsOk());
  EXPECT_THAT(owner->Create(kGpu0, KiB(64)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("failure injected")));
  EXPECT_EQ(state_->failures[0].remaining, 0) << "it would occur again";
  EXPECT_EQ(state_->failures_armed, 0);
  EXPECT_THAT(owner->Create(kGpu0, KiB(64)), IsOk());
  ASSERT_THAT(node_->FailCall("Export", 1), IsOk());
  const auto memory = owner->Create(kGpu0, KiB(64));
  EXPECT_THAT(owner->Export(*memory), IsOk());
}

TEST_F(SimBooks, ADamagedStateIsNotOpened) {
  const auto refused = [&] {
    return OpenSimDriver(directory_.path()).status();
  };
  state_->gpus[1].link = 1u << 30;
  EXPECT_THAT(refused(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  HasSubstr("is damaged")));
  state_->gpus[1].link = 0;
  EXPECT_THAT(refused(), IsOk());
  state_->granularity = 0;
  EXPECT_THAT(refused(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace sluice::device
