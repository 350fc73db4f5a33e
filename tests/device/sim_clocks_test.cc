// Tests the links' clocks, and the state, which only the node's owner writes.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <vector>

#include "kernels/device/sim/state.h"
#include "tests/device/sim_fixture.h"
#include "tests/support/child.h"

namespace sluice::device {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr DeviceIndex kGpu(0);
constexpr uid_t kOther = 61234;
const auto kDenied = StatusIs(absl::StatusCode::kPermissionDenied);

absl::Status Copy(Driver& driver, Bytes size) {
  std::vector<std::byte> from(size.size()), to(size.size());
  auto stream = driver.CreateStream(kGpu);
  if (!stream.ok()) return stream.status();
  const absl::Status copied = driver.CopyAsync(
      to.data(), from.data(), size, CopyDirection::kHostToDevice, *stream);
  return copied.ok() ? driver.SynchronizeStream(*stream) : copied;
}

TEST(SimClocks, ClocksCannotBeResized) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, MakeSimClocks());
  EXPECT_EQ(ftruncate(fd.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd.get(), 1 << 20), -1);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_THAT(MapClocks(fd).status(), IsOk());
}

TEST(SimClocks, ClocksThatCanShrinkAreRefused) {
  const UniqueFd loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), sizeof(SharedClocks)), 0);
  EXPECT_THAT(
      MapClocks(loose).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("clocks")));
  EXPECT_FALSE(MapClocks(UniqueFd()).ok());
}

TEST_F(SimTest, ADriverBooksLinksOnTheClocksThatItIsGiven) {
  ASSERT_THAT(node_->SetLinkSpeed("shared", 1e9, 1e9), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, MakeSimClocks());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto clocks, MapClocks(fd));
  ASSERT_THAT(Copy(*driver_, KiB(64)), IsOk());
  EXPECT_EQ(clocks->links[0].next_free_ns[0], 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto given,
                              OpenSimDriver(directory_.path(), fd));
  ASSERT_THAT(Copy(*given, KiB(64)), IsOk());
  EXPECT_GT(clocks->links[0].next_free_ns[0], 0);
  EXPECT_EQ(clocks->links[0].next_free_ns[1], 0);
}

// Guards against another user that truncates the state and so kills the
// processes that map it.
TEST_F(SimTest, OtherUsersReadTheStateOfANodeAndImportItsMemory) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  ASSERT_THAT(node_->SetLinkSpeed("shared", 1e9, 1e9), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kGpu0, MiB(1)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, driver_->Export(memory));
  const auto other = Child::Fork([&] {
    ASSERT_EQ(setresuid(kOther, kOther, kOther), 0);
    const std::string state = directory_.File("node.state");
    EXPECT_EQ(open(state.c_str(), O_RDWR | O_CLOEXEC), -1);
    EXPECT_EQ(errno, EACCES);
    EXPECT_EQ(truncate(state.c_str(), 0), -1);
    EXPECT_EQ(chmod(state.c_str(), 0666), -1);
    const auto driver = Open();
    ASSERT_NE(driver, nullptr);
    EXPECT_THAT(driver->Create(kGpu0, MiB(1)), kDenied);
    EXPECT_THAT(driver->Import(fd, kGpu0, MiB(1)), IsOk());
    EXPECT_THAT(Copy(*driver, KiB(64)), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto node,
                                SimNode::Open(directory_.path()));
    EXPECT_THAT(node->LoseGpu(kGpu), kDenied);
    EXPECT_THAT(node->FailCall("Create", 1), kDenied);
    EXPECT_THAT(node->SetLinkSpeed("shared", 1, 1), kDenied);
  });
  other->ExpectSuccess();
}

// Guards against a user that locks the state, as every reader may, and so keeps
// the node from opening.
TEST_F(SimTest, ALockOnTheStateDoesNotBlockTheNode) {
  driver_.reset();
  node_.reset();
  const UniqueFd lock(
      open(directory_.File("node.state").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  ASSERT_THAT(CreateSimNode(directory_.path(), SmallNode()), IsOk());
  EXPECT_NE(Open(), nullptr);
}

}  // namespace
}  // namespace sluice::device
