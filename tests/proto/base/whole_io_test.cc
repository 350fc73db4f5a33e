// Tests complete reads and writes, and the atomic replacement of files.
#include "proto/base/whole_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/file_text.h"
#include "proto/base/unique_fd.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

TEST(ReadAll, AFileIsReadWholeOrRefusedAboveTheLimit) {
  const UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  std::string written;
  for (int i = 0; written.size() < 200'000; ++i) written += std::to_string(i);
  ASSERT_THAT(WriteAll(fd.get(), written, "all"), IsOk());
  for (const size_t most : {written.size(), written.size() - 1}) {
    ASSERT_EQ(lseek(fd.get(), 0, SEEK_SET), 0);
    const auto read = ReadAll(fd.get(), most, "all");
    ASSERT_EQ(read.ok(), most == written.size());
    if (read.ok()) {
      EXPECT_TRUE(*read == written);
    }
  }
}

TEST(ReadAllAt, ThePositionOfTheDescriptorIsIgnored) {
  const UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  ASSERT_THAT(WriteAll(fd.get(), "0123456789", "ten"), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto some, ReadAllAt(fd.get(), 4, "ten"));
  EXPECT_EQ(some, "0123");
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto all, ReadAllAt(fd.get(), 10, "ten"));
  EXPECT_EQ(all, "0123456789");
}

// A read at the end of a file does not set errno. Guards against a status made
// from an earlier call's errno, which may be 0.
TEST(ReadAllAt, AShorterFileIsRefused) {
  const UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  ASSERT_THAT(WriteAll(fd.get(), "0123", "four"), IsOk());
  errno = 0;
  EXPECT_FALSE(ReadAllAt(fd.get(), 5, "four").ok());
}

TEST(ReplaceFile, TheOldContentIsReplaced) {
  const testing::TempDir folder;
  const std::string path = folder.File("f");
  ASSERT_THAT(ReplaceFile(path, "old"), IsOk());
  ASSERT_THAT(ReplaceFile(path, "new"), IsOk());
  EXPECT_EQ(TextOf(path), "new");
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_FALSE(Exists(path + ".new"));
}

// `path`.new may be a planted link, or the leftover of a dead process.
TEST(ReplaceFile, ALinkInPlaceOfTheTemporaryFileIsNotFollowed) {
  const testing::TempDir folder;
  const std::string path = folder.File("f"), other = folder.File("other");
  ASSERT_THAT(ReplaceFile(other, "other's"), IsOk());
  ASSERT_EQ(symlink(other.c_str(), (path + ".new").c_str()), 0);
  ASSERT_THAT(ReplaceFile(path, "mine"), IsOk());
  EXPECT_EQ(TextOf(path), "mine");
  EXPECT_EQ(TextOf(other), "other's");
}

TEST(ReplaceFile, AFailureLeavesNoTemporaryFile) {
  const testing::TempDir folder;
  const std::string path = folder.File("f");
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);  // no file can replace a folder
  EXPECT_FALSE(ReplaceFile(path, "mine").ok());
  EXPECT_FALSE(Exists(path + ".new"));
  EXPECT_THAT(SyncFolder(folder.File("none")),
              StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace sluice
