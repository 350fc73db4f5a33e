// Tests that a node still works after processes on it died at any moment, and
// that a forked child has no mapping.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <vector>

#include "tests/device/sim_fixture.h"
#include "tests/support/child.h"

namespace sluice::device {
namespace {

using ::sluice::testing::Child;
using ::sluice::testing::IsOk;

constexpr DeviceIndex kDyingGpu(0);

// Creates, maps, copies and releases memory until it is killed. A failure ends
// the loop, so that the parent sees an exit and no signal.
void UseTheNodeForever(Driver& driver) {
  const Stream stream = *driver.CreateStream(kDyingGpu);
  std::vector<std::byte> host(64 << 10);
  std::puts("busy");
  std::fflush(stdout);
  while (!::testing::Test::HasFailure()) {
    const auto memory = driver.Create(kGpu0, KiB(64));
    if (!memory.ok()) continue;  // other processes use all memory
    const Address address = *driver.Reserve(KiB(64), kGpu0.kind);
    EXPECT_THAT(driver.Map(address, KiB(64), *memory), IsOk());
    EXPECT_THAT(driver.SetAccess(address, KiB(64), kDyingGpu), IsOk());
    EXPECT_THAT(driver.CopyAsync(address, host.data(), KiB(64),
                                 CopyDirection::kHostToDevice, stream),
                IsOk());
    EXPECT_THAT(driver.SynchronizeStream(stream), IsOk());
    EXPECT_THAT(driver.Unmap(address, KiB(64)), IsOk());
    EXPECT_THAT(driver.FreeReservation(address, KiB(64)), IsOk());
    EXPECT_THAT(driver.Release(*memory), IsOk());
  }
}

TEST_F(SimTest, KilledProcessesLeaveNoMemoryAndNoLock) {
  ASSERT_THAT(node_->SetLinkSpeed("shared", 1e9, 1e9), IsOk());
  driver_.reset();
  const int seed = static_cast<int>(getpid());
  SCOPED_TRACE(seed);
  std::mt19937 random(static_cast<unsigned>(seed));
  for (int round = 0; round < 10; ++round) {
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < 3; ++i) {
      children.push_back(Child::Fork([this] { UseTheNodeForever(*Open()); }));
    }
    for (const auto& child : children) {
      ASSERT_TRUE(child->WaitForOutput("busy", absl::Seconds(30)));
    }
    for (const auto& child : children) {
      usleep(random() % 3000);
      child->Kill(SIGKILL);
    }
    for (const auto& child : children) {
      // A child that crashed has another signal.
      EXPECT_EQ(child->Join().signal, SIGKILL);
    }
    EXPECT_EQ(Used(kGpu0), Bytes(0));
  }
  driver_ = Open();
  EXPECT_THAT(driver_->Create(kGpu0, MiB(8)), IsOk());
}

TEST_F(SimTest, AForkedChildSeesNoMappedMemory) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kGpu0, MiB(1)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address address,
                              driver_->Reserve(MiB(1), kGpu0.kind));
  ASSERT_THAT(driver_->Map(address, MiB(1), memory), IsOk());
  ASSERT_THAT(driver_->SetAccess(address, MiB(1), kDyingGpu), IsOk());
  EXPECT_EQ(msync(address, 4096, MS_ASYNC), 0);
  const auto child = Child::Fork([&] {
    EXPECT_EQ(msync(address, 4096, MS_ASYNC), -1);
    EXPECT_EQ(errno, ENOMEM);
  });
  child->ExpectSuccess();
}

}  // namespace
}  // namespace sluice::device
