#include "proto/base/cgroup.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::EndsWith;

// A folder laid out like /proc and /sys/fs/cgroup.
class Cgroup : public ::testing::Test {
 protected:
  void IsIn(const std::string& proc_cgroup) {
    Write("/proc/self/cgroup", proc_cgroup);
  }
  void Set(const std::string& file, const std::string& text) {
    Write("/sys/fs/cgroup/" + file, text);
  }
  std::optional<MemoryLimit> Limit() const {
    return CgroupMemoryLimit("self", root_.path());
  }

 private:
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_.path() + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }

  testing::TempDir root_;
};

// Guards against reading only the limit of the root group.
TEST_F(Cgroup, TheSmallestLimitOfAllGroupsAboveCounts) {
  IsIn("0::/system.slice/a:b.service\n");
  EXPECT_FALSE(Limit());
  Set("system.slice/a:b.service/memory.max", "max");
  EXPECT_FALSE(Limit());
  Set("memory.max", "4294967296");
  EXPECT_EQ(Limit()->most, GiB(4));
  Set("system.slice/memory.max", "1073741824");
  EXPECT_EQ(Limit()->most, GiB(1));
  EXPECT_THAT(Limit()->file, EndsWith("/system.slice/memory.max"));
}

TEST_F(Cgroup, OnlyTheMemoryHierarchyOfCgroupV1Counts) {
  IsIn("12:cpu,cpuacct:/a\n9:hugetlb,memory:/jobs/7\n1:name=s:/b\n0::/\n");
  Set("a/memory.max", "1");
  Set("cpu/a/memory.limit_in_bytes", "1");
  Set("memory/jobs/7/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_FALSE(Limit());
  Set("memory/jobs/memory.limit_in_bytes", "1073741824");
  EXPECT_EQ(Limit()->most, GiB(1));
}

// Without a cgroup namespace, a container's /proc shows paths of the host.
TEST_F(Cgroup, TheLimitIsFoundIfTheMountBeginsBelowTheRoot) {
  IsIn("0::/docker/123/job/7\n");
  Set("memory.max", "4294967296");
  EXPECT_EQ(Limit()->most, GiB(4));
  Set("job/7/memory.max", "max");
  Set("job/memory.max", "1073741824");
  EXPECT_EQ(Limit()->most, GiB(1));
}

TEST_F(Cgroup, MemoryStatHasTheLimitOfGroupsAboveTheMount) {
  IsIn("4:memory:/docker/123\n");
  Set("memory/memory.limit_in_bytes", "4294967296");
  Set("memory/memory.stat",
      "cache 1\nhierarchical_memory_limit 1073741824\nrss 2");
  EXPECT_EQ(Limit()->most, GiB(1));
  EXPECT_THAT(Limit()->file, EndsWith("/memory/memory.stat"));
}

TEST_F(Cgroup, MalformedLinesAreIgnored) {
  Set("memory.max", "1073741824");
  for (const char* text : {"", "nonsense\n3:memory\n", "0:\n"}) {
    IsIn(text);
    EXPECT_FALSE(Limit()) << text;
  }
  IsIn("0::/../other\n");
  EXPECT_EQ(Limit()->most, GiB(1));
}

TEST(Pinnable, PinnableMemoryLeavesPartToTheMachine) {
  EXPECT_EQ(Pinnable(GiB(2000)), GiB(1800));
  EXPECT_EQ(Pinnable(GiB(512)), GiB(448));
  EXPECT_EQ(Pinnable(GiB(128)), GiB(64));
  EXPECT_EQ(Pinnable(GiB(24)), GiB(12));
}

}  // namespace
}  // namespace sluice
