#include <sys/socket.h>
#include <sys/stat.h>

#include <fstream>

#include "proto/wire.h"
#include "tests/support/child.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::wire {
namespace {

using ::sluice::testing::Child;
using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::sluice::testing::TempDir;
using ::testing::HasSubstr;

TEST(UnixSocket, AMissingSocketIsNamedWithWhatToDo) {
  EXPECT_THAT(Connect("/nonexistent/session.sock"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no socket at /nonexistent/session.sock: is "
                                 "sluiced running? start it, or name its "
                                 "session socket with --socket or "
                                 "SLUICE_SOCKET")));
}

TEST(UnixSocket, ATooLongPathIsRefused) {
  EXPECT_THAT(Connect("/" + std::string(200, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("107")));
}

TEST(UnixSocket, ASocketHasTheRequestedModeWhateverTheUmask) {
  const TempDir directory;
  const mode_t before = umask(0077);
  const auto listener = Listen(directory.File("s"), 0666);
  umask(before);
  ASSERT_THAT(listener, IsOk());
  struct stat info;
  ASSERT_EQ(stat(directory.File("s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, mode_t{0666});
}

TEST(UnixSocket, ALiveSocketIsNotTakenOver) {
  const TempDir directory;
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd listener,
                              Listen(directory.File("s"), 0600));
  EXPECT_THAT(
      Listen(directory.File("s"), 0600),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("another daemon")));
}

TEST(UnixSocket, AStaleSocketIsReplaced) {
  const TempDir directory;
  ASSERT_THAT(Listen(directory.File("s"), 0600), IsOk());  // closed at once
  EXPECT_THAT(Connect(directory.File("s")),
              StatusIs(absl::StatusCode::kUnavailable));
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd listener,
                              Listen(directory.File("s"), 0600));
  EXPECT_THAT(Connect(directory.File("s")), IsOk());
}

TEST(UnixSocket, AFileOfAnotherKindIsLeftAlone) {
  const TempDir directory;
  std::ofstream(directory.File("s")) << "precious";
  EXPECT_THAT(
      Listen(directory.File("s"), 0600),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("not a socket")));
  std::string word;
  std::ifstream(directory.File("s")) >> word;
  EXPECT_EQ(word, "precious");
}

TEST(UnixSocket, PacketsCrossProcesses) {
  const TempDir directory;
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd listener,
                              Listen(directory.File("s"), 0600));
  const auto child = Child::Fork([&] {
    const auto socket = Connect(directory.File("s"));
    ASSERT_THAT(socket, IsOk());
    Packet packet;
    packet.set_id(5);
    packet.mutable_request()->mutable_submit_profile();
    const auto memory = ToMemfd("profile", "bytes of a profile");
    ASSERT_THAT(memory, IsOk());
    const std::array fds = {memory->get()};
    ASSERT_THAT(Send(socket->get(), packet, fds), IsOk());
  });
  const UniqueFd peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto message, Receive(peer.get()));
  ASSERT_TRUE(message.has_value());
  EXPECT_THAT(CheckRequest(*message), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                              FromMemfd(message->fds.at(0)));
  EXPECT_EQ(bytes, "bytes of a profile");
  child->ExpectSuccess();
}

}  // namespace
}  // namespace sluice::wire
