#include "proto/wire.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "proto/base/shortage.h"
#include "tests/support/status_matchers.h"

namespace sluice::wire {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

int OpenFds() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

class WireTest : public ::testing::Test {
 protected:
  WireTest() {
    std::array<int, 2> ends;
    SLUICE_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                            ends.data()) == 0);
    left_ = UniqueFd(ends[0]);
    right_ = UniqueFd(ends[1]);
  }

  // Sends raw bytes with `count` copies of one descriptor.
  void SendRaw(const std::string& bytes, int count) {
    std::vector<int> fds(static_cast<size_t>(count), STDERR_FILENO);
    iovec data = {const_cast<char*>(bytes.data()), bytes.size()};
    msghdr header = {};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
    if (count > 0) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
    }
    ASSERT_GE(sendmsg(left_.get(), &header, 0), 0);
  }

  UniqueFd left_, right_;
};

Packet GrantedPacket(int extents) {
  Packet packet;
  packet.set_id(7);
  Granted* granted = packet.mutable_reply()->mutable_granted();
  for (int i = 0; i < extents; ++i) granted->add_extent_bytes(4096);
  return packet;
}

TEST_F(WireTest, APacketArrivesWithItsDescriptors) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd memory, ToMemfd("x", "hello"));
  const std::vector<int> fds(kMaxFds, memory.get());
  ASSERT_THAT(Send(left_.get(), GrantedPacket(kMaxFds), fds), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto message, Receive(right_.get()));
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->packet.id(), 7u);
  ASSERT_EQ(message->fds.size(), size_t{kMaxFds});
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                              FromMemfd(message->fds.back()));
  EXPECT_EQ(bytes, "hello");
  EXPECT_TRUE(fcntl(message->fds[0].get(), F_GETFD) & FD_CLOEXEC);
}

TEST_F(WireTest, TheEndOfThePeerIsNotAFault) {
  left_.Reset();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto message, Receive(right_.get()));
  EXPECT_FALSE(message.has_value());
  EXPECT_THAT(Send(right_.get(), GrantedPacket(0)),
              StatusIs(absl::StatusCode::kUnavailable));
}

// Guards against losing a refusal that came before the reset.
TEST_F(WireTest, APacketFromBeforeAResetIsReceived) {
  ASSERT_THAT(Send(right_.get(), GrantedPacket(0)), IsOk());
  ASSERT_THAT(Send(left_.get(), GrantedPacket(0)), IsOk());
  left_.Reset();  // closing with an unread packet is a reset
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto message, Receive(right_.get()));
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->packet.id(), 7u);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto end, Receive(right_.get()));
  EXPECT_FALSE(end.has_value());
}

// Guards against reporting this process's limit as the peer's fault.
TEST_F(WireTest, DescriptorsBeyondTheProcesssLimitAreReportedAsLost) {
#ifdef SLUICE_SANITIZED
  GTEST_SKIP() << "UBSan opens pipes, and no descriptor is left for them";
#endif
  Packet packet;
  packet.set_id(1);
  packet.mutable_request()->mutable_submit_profile();
  for (int i = 0; i < 2; ++i) SendRaw(packet.SerializeAsString(), 1);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const UniqueFd next(dup(STDERR_FILENO));
  const rlimit full{static_cast<rlim_t>(next.get()), limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
  const auto told =
      Receive(right_.get(), 0, [](UniqueFd) {});  // as the daemon receives
  const auto trusted = Receive(right_.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_THAT(told, IsOk());
  EXPECT_TRUE((*told)->lost_fds);
  EXPECT_TRUE((*told)->fds.empty());
  EXPECT_EQ(ShortageOf(trusted.status()), Shortage::kOpenFiles);
}

TEST_F(WireTest, ReceiveWithoutAWaitingPacketIsUnavailable) {
  EXPECT_THAT(Receive(right_.get(), MSG_DONTWAIT),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(WireTest, SurplusDescriptorsAreClosed) {
  const int before = OpenFds();
  Packet packet;
  packet.set_id(1);
  packet.mutable_request()->mutable_query();
  SendRaw(packet.SerializeAsString(), 9);
  {
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto message, Receive(right_.get()));
    EXPECT_TRUE(message->fds.empty());
  }
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(WireTest, APacketThatLacksItsDescriptorsIsRefused) {
  SendRaw(GrantedPacket(3).SerializeAsString(), 2);
  EXPECT_THAT(
      Receive(right_.get()),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs 3")));
}

TEST_F(WireTest, GarbageIsRefusedAndLeaksNothing) {
  const int before = OpenFds();
  SendRaw("\xff\xff not a packet", 5);
  EXPECT_THAT(Receive(right_.get()),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(WireTest, AnOversizePacketIsRefusedOnBothSides) {
  SendRaw(std::string(kMaxPacketBytes + 1, 'x'), 0);
  EXPECT_THAT(Receive(right_.get()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("limit")));
  Packet packet;
  packet.mutable_reply()->mutable_snapshot()->set_json(
      std::string(kMaxPacketBytes, 'x'));
  EXPECT_THAT(Send(left_.get(), packet),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("memfd")));
}

TEST_F(WireTest, SendNeverBlocksOnAPeerThatDoesNotRead) {
  absl::Status status;
  for (int i = 0; i < 100000 && status.ok(); ++i) {
    status = Send(left_.get(), GrantedPacket(0));
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(MemfdTest, ASealedMemfdCannotBeChanged) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, ToMemfd("plan", "bytes"));
  EXPECT_LT(pwrite(fd.get(), "x", 1, 0), 0);
  EXPECT_NE(ftruncate(fd.get(), 0), 0);
}

TEST(MemfdTest, AnUnsealedOrForeignFileIsRefused) {
  const UniqueFd open_memfd(memfd_create("open", MFD_CLOEXEC));
  EXPECT_THAT(
      FromMemfd(open_memfd),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sealed")));
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(FromMemfd(null), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(MemfdTest, AHugeSparseMemfdIsRefusedUnread) {
  const UniqueFd fd(memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), int64_t{1} << 40), 0);
  ASSERT_EQ(
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE),
      0);
  EXPECT_THAT(FromMemfd(fd),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("limit")));
}

}  // namespace
}  // namespace sluice::wire
