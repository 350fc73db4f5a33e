// Tests which device nodes a rank opens for its Hello.
#include <sys/stat.h>

#include <fstream>

#include "gtest/gtest.h"
#include "proto/wire.h"
#include "tests/support/temp_dir.h"

namespace sluice::wire {
namespace {

// Guards against a rank that wakes every GPU of its node.
TEST(GpuNodes, OnlyTheGpusOwnNodeIsOpenedIfItIsKnown) {
  const testing::TempDir folder;
  std::ofstream(folder.File("nvidia3")) << "\n";
  const auto nodes = OpenGpuNodes(folder.File("session.sock"), DeviceIndex(5),
                                  folder.File("nvidia3"));
  ASSERT_EQ(nodes.size(), 1u);
  struct stat opened, wanted;
  ASSERT_EQ(fstat(nodes[0].get(), &opened), 0);
  ASSERT_EQ(stat(folder.File("nvidia3").c_str(), &wanted), 0);
  EXPECT_EQ(opened.st_ino, wanted.st_ino);
}

}  // namespace
}  // namespace sluice::wire
