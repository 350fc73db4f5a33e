#include "proto/base/cgroup.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Cgroup, UnifiedGroupAndAllAboveItMayLimit) {
  EXPECT_THAT(MemoryLimitFiles("0::/system.slice/sluiced.service\n", "/cg"),
              ElementsAre("/cg/system.slice/sluiced.service/memory.max",
                          "/cg/system.slice/memory.max", "/cg/memory.max"));
  EXPECT_THAT(MemoryLimitFiles("0::/\n", "/cg"), ElementsAre("/cg/memory.max"));
}

TEST(Cgroup, OfTheOldHierarchiesOnlyTheMemoryControllersCounts) {
  EXPECT_THAT(
      MemoryLimitFiles("12:cpu,cpuacct:/a\n9:memory:/docker/x\n1:name=s:/b\n",
                       "/cg"),
      ElementsAre("/cg/memory/docker/x/memory.limit_in_bytes",
                  "/cg/memory/docker/memory.limit_in_bytes",
                  "/cg/memory/memory.limit_in_bytes"));
}

TEST(Cgroup, PathsMayHoldColonsAndLinesThatAreNoneAreNothing) {
  EXPECT_THAT(MemoryLimitFiles("0::/a:b\n", "/cg"),
              ElementsAre("/cg/a:b/memory.max", "/cg/memory.max"));
  EXPECT_THAT(MemoryLimitFiles("", "/cg"), IsEmpty());
  EXPECT_THAT(MemoryLimitFiles("nonsense\n3:memory\n", "/cg"), IsEmpty());
}

// Wrong once: only the root's file was read.
TEST(Cgroup, SmallestLimitOfAllAbove) {
  testing::TempDir directory;
  const std::string own = directory.File("own");
  const std::string parent = directory.File("parent");
  const std::string root = directory.File("root");
  std::ofstream(own) << "max\n";
  std::ofstream(parent) << "1073741824\n";
  std::ofstream(root) << "4294967296\n";
  const std::string none = directory.File("none");
  std::ofstream(none) << "9223372036854771712\n";
  EXPECT_EQ(SmallestLimit({own, parent, root})->most, GiB(1));
  EXPECT_EQ(SmallestLimit({own, parent, root})->file, parent);
  EXPECT_EQ(SmallestLimit({root, directory.File("missing")})->most, GiB(4));
  EXPECT_FALSE(SmallestLimit({own, none}));
  EXPECT_FALSE(SmallestLimit({}));
}

}  // namespace
}  // namespace sluice
