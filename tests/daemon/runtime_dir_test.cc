#include "daemon/runtime/runtime_dir.h"

#include <sys/stat.h>
#include <unistd.h>

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

TEST(RuntimeLock, ItsFolderIsForEveryUserWhateverTheUmask) {
  testing::TempDir directory;
  const std::string made = directory.File("a/b");
  const mode_t before = umask(077);
  EXPECT_THAT(RuntimeLock::Take(made), IsOk());
  umask(before);
  struct stat info = {};
  ASSERT_EQ(stat(made.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0755);
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

TEST(RuntimeLock, IsNotTakenWhereOthersMayWrite) {
  testing::TempDir directory;
  for (const mode_t mode : {0770, 0707, 01777}) {
    ASSERT_EQ(chmod(directory.path().c_str(), mode), 0);
    EXPECT_THAT(RuntimeLock::Take(directory.path()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("others may write to it")));
  }
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  EXPECT_THAT(RuntimeLock::Take(directory.path()), IsOk());
  // Nor below such a folder: it could be replaced.
  const std::string inner = directory.File("inner");
  ASSERT_EQ(mkdir(inner.c_str(), 0755), 0);
  ASSERT_EQ(chmod(directory.path().c_str(), 0777), 0);
  EXPECT_THAT(RuntimeLock::Take(inner),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("everybody may write to")));
  ASSERT_EQ(chmod(directory.path().c_str(), 01777), 0);
  EXPECT_THAT(RuntimeLock::Take(inner), IsOk());
}

TEST(RuntimeLock, IsNotTakenInAnothersFolder) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  testing::TempDir directory;
  const std::string inner = directory.File("inner");
  ASSERT_EQ(mkdir(inner.c_str(), 0755), 0);
  ASSERT_EQ(chown(directory.path().c_str(), 12345, 12345), 0);
  EXPECT_THAT(RuntimeLock::Take(directory.path()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("belongs to user 12345")));
  EXPECT_THAT(RuntimeLock::Take(inner),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("who could replace it")));
}

// A root daemon that followed one wrote where its maker wanted.
TEST(RuntimeLock, FollowsNoLink) {
  testing::TempDir directory;
  const std::string target = directory.File("target");
  ASSERT_EQ(symlink(target.c_str(), directory.File("lock").c_str()), 0);
  EXPECT_FALSE(RuntimeLock::Take(directory.path()).ok());
  EXPECT_FALSE(std::filesystem::exists(target));
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
