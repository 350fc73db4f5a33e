#include "daemon/runtime/runtime_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
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
#include "proto/base/user_map.h"
#include "tests/support/child.h"
#include "tests/support/sanitizer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::HasSubstr;

TEST(RuntimeLock, TheLockIsHeldOnceAndItsFileIsRemoved) {
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

TEST(RuntimeLock, TheLockHoldsEvenIfItsFileIsRemoved) {
  testing::TempDir directory;
  const RuntimeLock::Of keeper = {"keeper.lock", "sluiced-keeper", false};
  const auto first = RuntimeLock::Take(directory.path());
  ASSERT_THAT(first, IsOk());
  std::filesystem::remove(directory.File("lock"));
  EXPECT_THAT(RuntimeLock::Take(directory.path()),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("another sluiced runs in")));
  EXPECT_THAT(RuntimeLock::Take(directory.path(), keeper), IsOk());
}

TEST(RuntimeLock, TheLockMakesAFolderForAllUsersWhateverTheUmask) {
  testing::TempDir directory;
  const std::string made = directory.File("a/b");
  const mode_t before = umask(077);
  EXPECT_THAT(RuntimeLock::Take(made), IsOk());
  umask(before);
  struct stat info = {};
  ASSERT_EQ(stat(made.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0711);
}

TEST(RuntimeLock, NoOtherUserCanLockTheFolder) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  testing::TempDir directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  const std::string made = directory.File("run");
  ASSERT_THAT(RuntimeLock::Take(made), IsOk());
  testing::Child::Fork([&] {
    ASSERT_EQ(setuid(4321), 0);
    EXPECT_LT(open(made.c_str(), O_RDONLY), 0);
    EXPECT_EQ(access(made.c_str(), X_OK), 0);
  })->ExpectSuccess();
}

// Guards against a lock on a file that the lock's last holder has removed: no
// other process would find that file.
TEST(RuntimeLock, TheLockIsNeverHeldByTwoThreads) {
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

TEST(RuntimeLock, TheLockIsRefusedInAFolderThatOthersMayWrite) {
  testing::TempDir directory;
  for (const mode_t mode : {0770, 0707, 01777}) {
    ASSERT_EQ(chmod(directory.path().c_str(), mode), 0);
    EXPECT_THAT(RuntimeLock::Take(directory.path()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("others may write to it")));
  }
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  EXPECT_THAT(RuntimeLock::Take(directory.path()), IsOk());
  // A folder in a folder that others may write is refused, too: they could
  // replace the inner folder.
  const std::string inner = directory.File("inner");
  ASSERT_EQ(mkdir(inner.c_str(), 0755), 0);
  ASSERT_EQ(chmod(directory.path().c_str(), 0777), 0);
  EXPECT_THAT(RuntimeLock::Take(inner),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("everybody may write to")));
  ASSERT_EQ(chmod(directory.path().c_str(), 01777), 0);
  EXPECT_THAT(RuntimeLock::Take(inner), IsOk());
}

TEST(RuntimeLock, TheLockIsRefusedInTheFolderOfAnotherUser) {
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

// In a container that maps only its own user, root's /tmp belongs to "user
// 65534".
class OneUser : public ::testing::Test {
 protected:
  static constexpr uid_t kUser = 4321, kStranger = 5678;

  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    if (testing::kThreadSanitizer)
      GTEST_SKIP() << "ThreadSanitizer has a thread of its own";
  }

  // Makes a folder in `in` with this owner and mode.
  static std::string Make(const std::string& in, uid_t owner, mode_t mode) {
    std::string path = in + "/sluice-one-user-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    EXPECT_EQ(chown(path.c_str(), owner, owner), 0);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }

  // Locks `folder` as kUser in a new user namespace with the mapping `maps`.
  // Expects success if `fault` is empty, else an error with `fault`.
  static void Take(const std::string& folder, const std::string& maps,
                   const std::string& fault) {
    const auto user = testing::Child::Fork([&] {
      ASSERT_EQ(setresuid(kUser, kUser, kUser), 0);
      ASSERT_EQ(prctl(PR_SET_DUMPABLE, 1), 0);  // kUser owns /proc/self
      ASSERT_EQ(unshare(CLONE_NEWUSER), 0);
      ASSERT_EQ(write(STDOUT_FILENO, "made\n", 5), 5);
      while (UserMap::OfThisProcess().mapped == 0) usleep(1000);
      const auto lock = RuntimeLock::Take(folder);
      EXPECT_EQ(lock.ok(), fault.empty()) << lock.status();
      EXPECT_THAT(std::string(lock.status().message()), HasSubstr(fault));
    });
    ASSERT_TRUE(user->WaitForOutput("made", absl::Seconds(10)));
    std::ofstream(fmt::format("/proc/{}/uid_map", user->pid())) << maps;
    user->ExpectSuccess();
  }

  const std::string as_itself_ = fmt::format("{0} {0} 1\n", kUser);
  const std::string as_root_ = fmt::format("0 {} 1\n", kUser);
};

TEST_F(OneUser, RootsTemporaryFolderIsAccepted) {
  for (const std::string& maps : {as_itself_, as_root_}) {
    const std::string own = Make("/tmp", kUser, 0700);
    Take(own, maps, "");
    std::filesystem::remove(own);
  }
}

TEST_F(OneUser, AnotherUsersTemporaryFolderIsRefused) {
  for (const mode_t mode : {01777, 0755}) {
    const std::string strangers = Make("/tmp", kStranger, mode);
    Take(Make(strangers, kUser, 0700), as_itself_,
         strangers + " belongs to a user that this namespace does not map");
    std::filesystem::remove_all(strangers);
  }
}

TEST_F(OneUser, RootsTemporaryFolderIsRefusedIfTwoUsersAreMapped) {
  const std::string own = Make("/tmp", kUser, 0700);
  Take(own, as_root_ + fmt::format("1 {} 1\n", kStranger),
       "/tmp belongs to a user that this namespace does not map");
  std::filesystem::remove(own);
}

// Guards against a root daemon that writes where another user's symlink points.
TEST(RuntimeLock, TheLockFollowsNoSymlink) {
  testing::TempDir directory;
  const std::string target = directory.File("target");
  ASSERT_EQ(symlink(target.c_str(), directory.File("lock").c_str()), 0);
  EXPECT_FALSE(RuntimeLock::Take(directory.path()).ok());
  EXPECT_FALSE(std::filesystem::exists(target));
}

TEST(OwnedFolder, AFolderIsRemovedWithItsLastOwner) {
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
