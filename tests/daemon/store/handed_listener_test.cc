#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "daemon/store/starter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/unix_address.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using sluice::testing::TempDir;
using ::testing::HasSubstr;

class HandedListener : public ::testing::Test {
 protected:
  UniqueFd Bound(const std::string& path, int type = SOCK_SEQPACKET) {
    UniqueFd made(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    const auto address = *UnixAddress(path);
    EXPECT_EQ(bind(made.get(), reinterpret_cast<const sockaddr*>(&address),
                   sizeof(address)),
              0);
    return made;
  }
  UniqueFd Listening(const std::string& path, int type = SOCK_SEQPACKET) {
    UniqueFd made = Bound(path, type);
    EXPECT_EQ(listen(made.get(), 1), 0);
    return made;
  }
  absl::StatusOr<UniqueFd> Take(UniqueFd one, UniqueFd another = UniqueFd()) {
    std::vector<std::pair<std::string, UniqueFd>> sockets;
    if (one) sockets.emplace_back("sluiced.socket", std::move(one));
    if (another) sockets.emplace_back("http", std::move(another));
    return TakeHandedListener(std::move(sockets), path_);
  }
  void ExpectRefused(const absl::StatusOr<UniqueFd>& taken,
                     const std::string& why) {
    EXPECT_THAT(taken,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::AllOf(HasSubstr(why), HasSubstr(path_))));
  }

  const TempDir folder_;
  const std::string path_ = folder_.File("session.sock");
};

TEST_F(HandedListener, TheSocketAtThePathIsTaken) {
  UniqueFd made = Listening(path_);
  const int number = made.get();
  const auto taken = Take(std::move(made));
  ASSERT_THAT(taken, IsOk());
  EXPECT_EQ(taken->get(), number);
}

TEST_F(HandedListener, NothingIsTakenIfNoSocketWasPassed) {
  const auto taken = Take(UniqueFd());
  ASSERT_THAT(taken, IsOk());
  EXPECT_FALSE(*taken);
}

TEST_F(HandedListener, ASocketBoundByAnotherNameOfTheFolderIsTaken) {
  const std::string link = folder_.File("link");
  std::filesystem::create_directory_symlink(folder_.path(), link);
  EXPECT_THAT(Take(Listening(link + "/session.sock")), IsOk());
}

TEST_F(HandedListener, ASocketIsTakenEvenIfItsFileWasRemoved) {
  UniqueFd made = Listening(path_);
  std::filesystem::remove(path_);
  EXPECT_THAT(Take(std::move(made)), IsOk());
}

TEST_F(HandedListener, ASocketOfAnotherKindOrPathIsRefused) {
  ExpectRefused(Take(Listening(folder_.File("admin.sock"))), "admin.sock'");
  ExpectRefused(Take(Listening(path_, SOCK_STREAM)),
                "'sluiced.socket', which is no");
  std::filesystem::remove(path_);
  ExpectRefused(Take(Bound(path_)), "no listening SOCK_SEQPACKET");
  ExpectRefused(Take(UniqueFd(dup(STDIN_FILENO))), "no listening");
  std::filesystem::remove(path_);
  ExpectRefused(Take(Listening(path_), Listening(folder_.File("http.sock"))),
                "2 sockets ('sluiced.socket', 'http')");
}

TEST_F(HandedListener, OnlyADuplicateIsTheSameSocket) {
  const UniqueFd made = Listening(path_);
  const UniqueFd other = Listening(folder_.File("other"));
  const UniqueFd again(dup(made.get()));
  EXPECT_TRUE(IsSameSocket(made, again));
  EXPECT_FALSE(IsSameSocket(made, other));
}

}  // namespace
}  // namespace sluice::daemon
