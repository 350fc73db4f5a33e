// Tests extents on a simulated GPU that is full: a new extent fits only after
// an old one is destroyed, so any change of order shows.
#include "daemon/service/extents.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/sim/sim.h"
#include "proto/base/mutex.h"
#include "tests/daemon/store/fake_store.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::Each;

constexpr Bytes kExtent = KiB(64);
constexpr Bytes kHostMemory = MiB(1);
constexpr PoolId kGpu = {PoolKind::kGpu, 0};

// A GPU of `kHeld` extents, and a loop on a thread of its own.
class ExtentsTest : public ::testing::Test {
 protected:
  static constexpr int kHeld = 4;
  static constexpr absl::Duration kPatience = absl::Seconds(3);

  void SetUp() override {
    const device::SimConfig node = {
        .gpus = {{kExtent * kHeld, "link", NumaIndex(0)}},
        .links = {{"link", 0, 0}},
        .host_memory = kHostMemory};
    ASSERT_THAT(device::CreateSimNode(directory_.path(), node), IsOk());
    auto driver = Open(directory_.path());
    ASSERT_THAT(driver, IsOk());
    driver_ = *std::move(driver);
    auto loop = Loop::Make(&clock_);
    ASSERT_THAT(loop, IsOk());
    loop_ = *std::move(loop);
    auto handover = HandOver(Starter());  // without a store
    ASSERT_THAT(handover, IsOk());
    handover_ = *std::move(handover);
    arena_ = std::make_unique<Arena>(driver_.get(), Arena::Options());
    extents_ =
        std::make_unique<Extents>(driver_.get(), arena_.get(), loop_.get(),
                                  handover_.get(), Note(), kPatience);
    thread_ = std::thread([this] { loop_->Run(); });
  }

  void TearDown() override {
    loop_->Stop();
    thread_.join();
  }

  virtual absl::StatusOr<std::unique_ptr<device::Driver>> Open(
      const std::string& directory) {
    return device::OpenSimDriver(directory);
  }

  absl::StatusOr<std::unique_ptr<Handover>> HandOver(Starter starter) {
    return Handover::Start(std::move(starter), loop_.get(), &closer_);
  }

  // Make and Destroy must run on the loop's thread, like core's effects.
  void Make(int id) {
    extents_->Make(ExtentId(id), kGpu, kExtent, PrincipalId(1));
  }
  void Destroy(int id) { extents_->Destroy(ExtentId(id)); }
  void OnLoop(const std::function<void()>& work) {
    ASSERT_TRUE(loop_->Call(work, absl::Seconds(10)));
  }

  Extents::Made Note() {
    return [this](const std::vector<Core::ExtentOutcome>& outcomes) {
      const MutexLock lock(mutex_);
      for (const auto& [extent, made] : outcomes) made_.push_back(made);
      more_.NotifyOne();
    };
  }
  // Waits for `count` results of Make, and returns all results so far.
  std::vector<absl::Status> Made(size_t count) {
    const auto deadline = CondVar::Deadline(absl::Seconds(10));
    const MutexLock lock(mutex_);
    while (made_.size() < count && more_.WaitUntil(mutex_, deadline)) {
    }
    EXPECT_GE(made_.size(), count);
    return made_;
  }

  MonotonicClock clock_;
  testing::TempDir directory_;
  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<Loop> loop_;
  Mutex mutex_;
  CondVar more_;
  std::vector<absl::Status> made_ ABSL_GUARDED_BY(mutex_);
  Closer closer_;
  std::unique_ptr<Handover> handover_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Extents> extents_;  // its thread uses the members above
  std::thread thread_;
};

TEST_F(ExtentsTest, OneExtentTooManyFailsAlone) {
  OnLoop([&] {
    for (int id = 0; id < kHeld + 1; ++id) Make(id);
  });
  const auto made = Made(kHeld + 1);
  EXPECT_THAT(std::vector(made.begin(), made.begin() + kHeld), Each(IsOk()));
  EXPECT_THAT(made.back(), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(ExtentsTest, MemoryMadeAheadIsReleasedForAnotherSize) {
  Arena arena(
      driver_.get(),
      {.nodes = {NumaIndex(0)}, .ready = kHostMemory, .extent = kExtent});
  Extents extents(driver_.get(), &arena, loop_.get(), handover_.get(), Note());
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (arena.ready(NumaIndex(0)) < kHostMemory && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  const PoolId host = {PoolKind::kHost, 0};
  OnLoop([&] { extents.Make(ExtentId(1), host, kExtent, PrincipalId(1)); });
  OnLoop([&] {
    extents.Make(ExtentId(2), host, kHostMemory - kExtent, PrincipalId(1));
  });
  EXPECT_THAT(Made(2), Each(IsOk()));
}

// The core counts a dead process' memory as free before the device has it back.
TEST_F(ExtentsTest, AnExtentWaitsForMemoryThatBecomesFreeSoon) {
  auto other = device::OpenSimDriver(directory_.path());
  ASSERT_THAT(other, IsOk());
  const auto held =
      (*other)->Create(device::Placement::Gpu(DeviceIndex(0)), kExtent);
  ASSERT_THAT(held, IsOk());
  OnLoop([&] {
    for (int id = 0; id < kHeld; ++id) Make(id);
  });
  Made(kHeld - 1);
  absl::SleepFor(kPatience / 5);
  ASSERT_THAT((*other)->Release(*held), IsOk());
  EXPECT_THAT(Made(kHeld), Each(IsOk()));
}

TEST_F(ExtentsTest, AnExtentWithoutMemoryFailsAfterThePatience) {
  OnLoop([&] {
    for (int id = 0; id < kHeld; ++id) Make(id);
  });
  Made(kHeld);
  const absl::Time start = clock_.Now();
  OnLoop([&] {
    Make(kHeld);
    Make(kHeld + 1);
  });
  const auto made = Made(kHeld + 2);
  EXPECT_GE(clock_.Now() - start, kPatience);
  EXPECT_THAT(std::vector(made.begin() + kHeld, made.end()),
              Each(StatusIs(absl::StatusCode::kResourceExhausted)));
}

TEST_F(ExtentsTest, AWaitingExtentDoesNotDelayADestroyThatMakesRoom) {
  OnLoop([&] {
    for (int id = 0; id < kHeld; ++id) Make(id);
  });
  Made(kHeld);
  OnLoop([&] { Make(kHeld); });
  absl::SleepFor(kPatience / 5);
  OnLoop([&] { Destroy(0); });
  EXPECT_THAT(Made(kHeld + 1), Each(IsOk()));
}

// Owns the node, as the daemon does: the driver knows whether there is room
// without asking the kernel. Asking takes longer the more processes exist.
class OwnedExtentsTest : public ExtentsTest {
 protected:
  absl::StatusOr<std::unique_ptr<device::Driver>> Open(
      const std::string& directory) override {
    return device::OpenOwnedSimDriver(directory);
  }
};

// Guards against a device thread that sleeps 10 ms for each failing extent, one
// after the other.
TEST_F(OwnedExtentsTest, ExtentsThatCannotBeMadeDelayNoOthers) {
  OnLoop([&] {
    for (int id = 0; id < kHeld; ++id) Make(id);
  });
  Made(kHeld);
  constexpr int kFailing = 40;
  for (int i = 0; i < kFailing; ++i) {
    OnLoop([&] { Make(kHeld + i); });
    // so that each is a batch of its own
    absl::SleepFor(absl::Milliseconds(12));
  }
  const auto good = [&] {
    const MutexLock lock(mutex_);
    return std::count_if(made_.begin(), made_.end(),
                         [](const absl::Status& each) { return each.ok(); });
  };
  // Makes one good extent while all failing extents still wait.
  const absl::Time start = clock_.Now();
  OnLoop([&] {
    extents_->Make(ExtentId(1000), {PoolKind::kHost, 0}, kExtent,
                   PrincipalId(1));
  });
  while (good() == kHeld && clock_.Now() - start < kPatience) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(good(), kHeld + 1);
  // The good extent is made before the first failing extent gives up.
  EXPECT_LT(clock_.Now() - start, kPatience / 2);
}

// Only an extent without room is tried again; other errors would repeat.
TEST_F(ExtentsTest, OtherErrorsAreReportedAtOnce) {
  auto node = device::SimNode::Open(directory_.path());
  ASSERT_THAT(node, IsOk());
  ASSERT_THAT((*node)->LoseGpu(DeviceIndex(0)), IsOk());
  const absl::Time start = clock_.Now();
  OnLoop([&] { Make(0); });
  EXPECT_THAT(Made(1), Each(StatusIs(absl::StatusCode::kUnavailable)));
  EXPECT_LT(clock_.Now() - start, kPatience);
}

// Guards against a Make after a Destroy that joins a batch from before the
// Destroy and is executed too early.
TEST_F(ExtentsTest, AnExtentIsMadeAfterEarlierDestroys) {
  OnLoop([&] {
    for (int id = 0; id < kHeld; ++id) Make(id);
  });
  size_t expected = kHeld;
  Made(expected);
  int oldest = 0, next = kHeld;
  for (int round = 0; round < 50; ++round) {
    OnLoop([&] {
      for (int i = 0; i < kHeld; ++i) {
        Destroy(oldest++);
        Make(next++);
      }
    });
    expected += kHeld;
    ASSERT_THAT(Made(expected), Each(IsOk())) << "in round " << round;
  }
}

// Guards against a state that names an extent which was not kept: the next
// daemon could not take that extent over.
TEST_F(ExtentsTest, AnExtentThatCannotBeKeptEndsSaving) {
  testing::FakeStore store(directory_.File("store"));
  Starter starter;
  starter.notify_socket = directory_.File("store");
  starter.store_size = 100;
  starter.open_files = 1024;
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto handover,
                              HandOver(std::move(starter)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto node,
                              device::SimNode::Open(directory_.path()));
  ASSERT_THAT(node->FailCall("Keep", 1), IsOk());
  Extents extents(driver_.get(), arena_.get(), loop_.get(), handover.get(),
                  Note());
  EXPECT_TRUE(handover->saves());
  OnLoop([&] { extents.Make(ExtentId(1), kGpu, kExtent, PrincipalId(1)); });
  while (store.Next(/*wait_ms=*/500)) {
  }
  EXPECT_THAT(Made(1), Each(IsOk()));
  EXPECT_FALSE(handover->saves());
}

}  // namespace
}  // namespace sluice::daemon
