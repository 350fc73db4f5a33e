#include "proto/base/numa.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(
      std::filesystem::path(path).parent_path());
  std::ofstream(path) << text << "\n";
}

std::vector<int> Numbers(const cpu_set_t& cores) {
  std::vector<int> numbers;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &cores)) numbers.push_back(i);
  }
  return numbers;
}

class Numa : public ::testing::Test {
 protected:
  // Two nodes of one socket, and one node with only memory.
  Numa() {
    const std::string node = root_.path() + "/sys/devices/system/node/node";
    Write(node + "0/cpulist", "0-1,4");
    Write(node + "0/meminfo", "Node 0 MemTotal:  1024 kB");
    Write(node + "1/cpulist", "2-3");
    Write(node + "10/cpulist", "");
    Write(node + "10/meminfo",
          "Node 10 MemTotal:  2048 kB\nNode 10 MemFree: 1");
    Write(root_.path() + "/sys/devices/system/node/online", "0-1,10");
    Write(root_.path() +
              "/sys/devices/system/cpu/cpu2/topology/core_siblings_list",
          "0-4");
  }
  testing::TempDir root_;
};

TEST_F(Numa, NodesHaveMemoryAndPerhapsCores) {
  const auto nodes = ReadNumaNodes(root_.path());
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].memory, MiB(1));
  EXPECT_TRUE(nodes[1].has_cores);
  EXPECT_EQ(nodes[2].number, 10u);
  EXPECT_EQ(nodes[2].memory, MiB(2));
  EXPECT_FALSE(nodes[2].has_cores);
  EXPECT_TRUE(ReadNumaNodes(root_.path() + "/none").empty());
}

TEST_F(Numa, ASocketMayHaveSeveralNodes) {
  EXPECT_THAT(Numbers(CoresOfNode(NumaIndex(0), root_.path())),
              ElementsAre(0, 1, 4));
  EXPECT_THAT(Numbers(CoresOfSocket(NumaIndex(1), root_.path())),
              ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Numbers(CoresOfSocket(NumaIndex(0), root_.path())),
              ElementsAre(0, 1, 4));
}

TEST_F(Numa, AThreadStaysOnCoresThatItMayUse) {
  cpu_set_t before, one, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  StayOn(one);
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
  CPU_SET(Numbers(before).back(), &one);
  StayOn(one);
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&one, &after));
  sched_setaffinity(0, sizeof(before), &before);
}

}  // namespace
}  // namespace sluice
