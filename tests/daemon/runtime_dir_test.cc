#include "daemon/runtime_dir.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::HasSubstr;

TEST(RuntimeLock, IsHeldByOneAndGoneAfterIt) {
  testing::TempDir directory;
  {
    const auto first = RuntimeLock::Take(directory.path());
    ASSERT_THAT(first, IsOk());
    EXPECT_THAT(RuntimeLock::Take(directory.path()),
                StatusIs(absl::StatusCode::kAlreadyExists,
                         HasSubstr("another sluiced runs in")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  EXPECT_THAT(RuntimeLock::Take(directory.path()), IsOk());
}

// Wrong once: who had opened the file before its holder removed it got a lock
// on a file that nobody else would find.
TEST(RuntimeLock, IsNeverHeldByTwoHoweverTheyComeAndGo) {
  testing::TempDir directory;
  std::atomic<int> holders = 0, taken = 0;
  std::atomic<bool> two = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 3000; ++round) {
        const auto lock = RuntimeLock::Take(directory.path());
        if (!lock.ok()) continue;
        if (++holders > 1) two = true;
        std::this_thread::yield();
        ++taken;
        --holders;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(two);
  EXPECT_GT(taken, 0);
}

TEST(OwnedFolder, GoesWithItsOwnerAndOnlyOnce) {
  testing::TempDir directory;
  const std::string path = directory.File("sim");
  std::filesystem::create_directories(path);
  std::ofstream(path + "/node.state") << "x";
  {
    std::optional<OwnedFolder> first(std::in_place);
    first->Own(path);
    OwnedFolder second(std::move(*first));
    first.reset();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace sluice::daemon
