// Tests which memory of a simulated node other processes hold, as the kernel
// reports it.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>

#include "kernels/device/sim/memory_name.h"
#include "kernels/device/sim/outside.h"
#include "tests/device/sim_fixture.h"
#include "tests/support/child.h"

namespace sluice::device {
namespace {

using testing::Child;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::Pair;
using testing::StatusIs;
using ::testing::UnorderedElementsAre;

class SimOutside : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    driver_.reset();
    auto owner = OpenOwnedSimDriver(directory_.path());
    ASSERT_THAT(owner, IsOk());
    owner_ = *std::move(owner);
  }
  std::map<Placement, Bytes> Outside() {
    auto held = owner_->HeldOutside();
    EXPECT_THAT(held.status(), IsOk());
    return held.ok() ? *std::move(held) : std::map<Placement, Bytes>();
  }
  // Returns a memfd that is named like memory of this node, but that no driver
  // made.
  UniqueFd Named(Placement where, Bytes size) const {
    const std::string name =
        ToText({*NodeName(directory_.path()), /*maker=*/1, where, size});
    UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC));
    EXPECT_TRUE(fd && ftruncate(fd.get(), size.count()) == 0);
    return fd;
  }
  // Starts a process that runs `take` and then stays alive.
  static std::unique_ptr<Child> Holding(const std::function<void()>& take) {
    auto child = Child::Fork([&] {
      take();
      printf("holds\n");
      fflush(stdout);
      pause();
    });
    EXPECT_TRUE(child->WaitForOutput("holds", absl::Seconds(10)));
    return child;
  }

  std::unique_ptr<Driver> owner_;
};

// Maps `fd`, then closes it.
void* MapAndClose(UniqueFd fd, Bytes size) {
  void* const at =
      mmap(nullptr, size.size(), PROT_READ, MAP_SHARED, fd.get(), 0);
  EXPECT_NE(at, MAP_FAILED);
  return at;
}

TEST(SimMemoryName, ANameIsReadAsItWasWritten) {
  const MemoryName name{"8.1-ff-0", 0xfedcba9876543210, kHost1, MiB(3)};
  EXPECT_EQ(ReadMemoryName(ToText(name)), name);
  EXPECT_EQ(ReadMemoryName("sluice-sim:n:1:gpu0:65536"),
            (MemoryName{"n", 1, kGpu0, KiB(64)}));
  for (const char* other :
       {"", "sluice-sim", "sluice-sim:n:1:gpu0", "sluice-sim:n:1:gpu0:0",
        "sluice-sim:n:1:gpu0:-5", "sluice-sim:n:1:disk0:5",
        "sluice-sim:n:1:gpu:5", "sluice-sim:n:x:gpu0:5", "other:n:1:gpu0:5",
        "sluice-sim:n:1:gpu0:5:6",
        "sluice-sim:n:1:gpu0:99999999999999999999"}) {
    EXPECT_EQ(ReadMemoryName(other), std::nullopt) << other;
  }
}

TEST_F(SimOutside, DescriptorsAndMappingsOfOthersCountOncePerMemory) {
  EXPECT_THAT(Outside(), IsEmpty());
  const auto descriptor = Holding([&] { Named(kGpu0, MiB(3)).Release(); });
  const auto mapping =
      Holding([&] { MapAndClose(Named(kHost1, MiB(2)), MiB(2)); });
  EXPECT_THAT(Outside(),
              UnorderedElementsAre(Pair(kGpu0, MiB(3)), Pair(kHost1, MiB(2))));
  // Memory with two descriptors and a mapping, in two processes, counts once.
  UniqueFd fd = Named(kGpu0, MiB(4));
  const auto second = Holding([&] { MapAndClose(*fd.Duplicate(), MiB(4)); });
  EXPECT_THAT(Outside(),
              UnorderedElementsAre(Pair(kGpu0, MiB(7)), Pair(kHost1, MiB(2))));
  fd.Reset();
  EXPECT_EQ(Outside()[kGpu0], MiB(7)) << "the other process still maps it";
}

TEST_F(SimOutside, HoldersAreListedWithAllTheirMemory) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory made,
                              owner_->Create(kHost1, MiB(2)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, owner_->Export(made));
  const auto holder = Holding([&] {
    MapAndClose(*fd.Duplicate(), MiB(2));
    Named(kGpu0, MiB(3)).Release();
  });
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto found,
                              FindSimHolders(directory_.path()));
  ASSERT_EQ(found.size(), 1) << "this process must not be listed";
  EXPECT_EQ(found[0].pid, holder->pid());
  EXPECT_EQ(found[0].uid, geteuid());
  EXPECT_EQ(found[0].command, "sim_test");
  EXPECT_THAT(found[0].held,
              UnorderedElementsAre(Pair(kGpu0, MiB(3)), Pair(kHost1, MiB(2))));
}

TEST_F(SimOutside, AForkedChildsMappingAloneIsSeen) {
  const auto parent = Holding([&] {
    void* const at = MapAndClose(Named(kGpu0, MiB(3)), MiB(3));
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (true) pause();
    }
    munmap(at, MiB(3).size());
  });
  EXPECT_EQ(Outside()[kGpu0], MiB(3));
}

TEST_F(SimOutside, DescriptorsInAThreadsOwnTableAreSeen) {
  const auto holder = Holding([&] {
    std::latch taken(1);
    std::thread([&] {
      EXPECT_EQ(unshare(CLONE_FILES), 0);
      Named(kGpu0, MiB(3)).Release();
      taken.count_down();
      while (true) pause();
    }).detach();
    taken.wait();
  });
  EXPECT_EQ(Outside()[kGpu0], MiB(3));
}

TEST_F(SimOutside, MemoryOfThisDriverOrOfAnotherNodeIsNotOutside) {
  const auto memory = owner_->Create(kGpu0, MiB(2));
  ASSERT_THAT(memory, IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, owner_->Export(*memory));
  const auto rank = Holding([&] { fd.Duplicate()->Release(); });
  const testing::TempDir elsewhere;
  ASSERT_THAT(CreateSimNode(elsewhere.path(), SmallNode()), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto other,
                              OpenSimDriver(elsewhere.path()));
  ASSERT_THAT(other->Create(kGpu0, MiB(1)), IsOk());
  EXPECT_THAT(Outside(), IsEmpty());
  // Memory of another driver on this node counts.
  const auto beside = Open();
  ASSERT_THAT(beside->Create(kGpu0, MiB(1)), IsOk());
  EXPECT_EQ(Outside()[kGpu0], MiB(1));
}

// Guards against reading the amount of held memory from a page that every user
// can write.
TEST_F(SimOutside, OutsideMemoryIsUsedUntilItsHolderEnds) {
  const auto rank = Holding([&] { Named(kGpu0, MiB(3)).Release(); });
  EXPECT_EQ(Outside()[kGpu0], MiB(3));
  EXPECT_EQ(owner_->Usage(kGpu0)->used, MiB(3));
  EXPECT_THAT(owner_->Create(kGpu0, MiB(5)), IsOk());
  EXPECT_THAT(owner_->Create(kGpu0, MiB(1)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  rank->Kill(SIGKILL);
  rank->Join();
  EXPECT_THAT(Outside(), IsEmpty());
  EXPECT_THAT(owner_->Create(kGpu0, MiB(3)), IsOk());
}

TEST_F(SimOutside, OutsideMemoryNeverExceedsThePlacesTotal) {
  const UniqueFd gpu = Named(kGpu0, GiB(900)), host = Named(kHost0, MiB(10)),
                 other = Named(kHost1, MiB(10)),
                 none = Named({Placement::Kind::kGpu, 7}, MiB(1));
  EXPECT_THAT(Outside(),
              UnorderedElementsAre(Pair(kGpu0, MiB(8)), Pair(kHost0, MiB(10)),
                                   Pair(kHost1, MiB(6))));
}

TEST_F(SimOutside, AMemfdThatAnotherUserMadeIsNotCounted) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto lies = Holding([&] {
    ASSERT_EQ(setresuid(61234, 61234, 61234), 0);
    Named(kGpu0, GiB(900)).Release();
    MapAndClose(Named(kGpu0, GiB(800)), GiB(800));
  });
  EXPECT_THAT(Outside(), IsEmpty());
  // Another user holds this memory but root made it, as with a rank's memory.
  const UniqueFd made = Named(kGpu0, MiB(2));
  const auto holds = Holding([&] {
    ASSERT_EQ(setresuid(61234, 61234, 61234), 0);
    MapAndClose(*made.Duplicate(), MiB(2));
  });
  EXPECT_EQ(Outside()[kGpu0], MiB(2));
}

}  // namespace
}  // namespace sluice::device
