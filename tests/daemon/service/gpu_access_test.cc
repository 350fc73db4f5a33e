// Tests which descriptors prove that a process may use a GPU.
#include "daemon/service/identity/gpu_access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GpuAccessTest : public ::testing::Test {
 protected:
  GpuAccessTest() {
    for (const char* name : {"gpu0", "gpu1"}) {
      nodes_.push_back(directory_.File(name));
      std::ofstream(nodes_.back()) << "";
    }
  }
  static GpuAccess Of(std::vector<std::string> nodes) {
    auto access = GpuAccess::Make(std::move(nodes));
    EXPECT_THAT(access, IsOk());
    return *std::move(access);
  }
  static GpuAccess::Gpus Shown(const GpuAccess& access, const std::string& path,
                               int flags) {
    std::vector<UniqueFd> shown;
    shown.emplace_back(open(path.c_str(), flags | O_CLOEXEC));
    EXPECT_TRUE(shown.back()) << path;
    return access.Shown(shown);
  }

  testing::TempDir directory_;
  std::vector<std::string> nodes_;
};

TEST_F(GpuAccessTest, AnOpenDeviceNodeGivesAccessToItsGpuOnly) {
  const GpuAccess access = Of(nodes_);
  const GpuAccess::Gpus gpus = Shown(access, nodes_[1], O_RDWR);
  EXPECT_THAT(gpus, ElementsAre(1));
  EXPECT_THAT(access.May(gpus, 1), IsOk());
  EXPECT_THAT(access.May(gpus, 0),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("gpu0 that is open for reading and writing; "
                                 "permit it to open that, or set access = "
                                 "\"any\" in [gpus]")));
  EXPECT_THAT(access.May(gpus, 7), IsOk())
      << "the core refuses a GPU that does not exist";
}

// Any user that may search the folder can open a path with O_PATH.
TEST_F(GpuAccessTest, ADescriptorWithoutWriteAccessShowsNoGpu) {
  const GpuAccess access = Of(nodes_);
  EXPECT_THAT(Shown(access, nodes_[0], O_PATH), IsEmpty());
  EXPECT_THAT(Shown(access, nodes_[0], O_RDONLY), IsEmpty());
  EXPECT_THAT(Shown(access, directory_.path(), O_PATH), IsEmpty());
}

TEST_F(GpuAccessTest, ACopyOfANodeOrAnotherDeviceShowsNoGpu) {
  const GpuAccess access = Of({"/dev/null", nodes_[0]});
  const std::string copy = directory_.File("copy");
  std::ofstream(copy) << "";
  EXPECT_THAT(Shown(access, copy, O_RDWR), IsEmpty());
  EXPECT_THAT(Shown(access, "/dev/zero", O_RDWR), IsEmpty());
  EXPECT_THAT(Shown(access, "/dev/null", O_RDWR), ElementsAre(0));
}

TEST_F(GpuAccessTest, ADeviceIsKnownByItsNumberNotItsPath) {
  const std::string other = directory_.File("null");
  if (mknod(other.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) {
    GTEST_SKIP() << "only root can make a device node";
  }
  const UniqueFd fd(open(other.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) GTEST_SKIP() << "this file system has no devices";
  EXPECT_THAT(Shown(Of({"/dev/null"}), other, O_RDWR), ElementsAre(0));
}

TEST_F(GpuAccessTest, AGpuWithoutAKnownNodeIsRefusedUnlessAccessIsAny) {
  const GpuAccess access = Of({""});
  EXPECT_THAT(access.May({}, 0), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(GpuAccess().May({}, 0), IsOk());
  EXPECT_FALSE(GpuAccess::Make({directory_.File("none")}).ok());
}

}  // namespace
}  // namespace sluice::daemon
