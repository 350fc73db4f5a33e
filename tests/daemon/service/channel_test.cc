// Tests a session's socket with a peer that reads late, or not at all.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "daemon/service/sessions.h"
#include "gtest/gtest.h"
#include "proto/wire.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::FakeClock;
using sluice::testing::IsOk;

class ChannelTest : public ::testing::Test {
 protected:
  // One packet of eight descriptors may be in flight.
  ChannelTest() : quotas_(SharesOfEight()) {
    auto loop = Loop::Make(&clock_);
    EXPECT_THAT(loop, IsOk());
    loop_ = *std::move(loop);
    shared_.loop = loop_.get();
    int both[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, both), 0);
    peer_ = UniqueFd(both[1]);
    UniqueFd pidfd(
        static_cast<int>(syscall(SYS_pidfd_open, getpid(), /*flags=*/0)));
    channel_ =
        std::make_unique<Channel>(&shared_, SessionId(1), Principal{1, ""},
                                  UniqueFd(both[0]), std::move(pidfd));
  }

  static Shares SharesOfEight() {
    Shares shares;
    shares.fill({8, 16});
    shares[static_cast<size_t>(Resource::kQueuedBytes)] = {1 << 20, 1 << 20};
    return shares;
  }
  void SendEight() {
    Outgoing out;
    const auto null = std::make_shared<const UniqueFd>(
        open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (int i = 0; i < 8; ++i) {
      out.packet.mutable_reply()->mutable_granted()->add_extent_bytes(1);
      out.fds.push_back(null);
    }
    channel_->Send(std::move(out));
  }
  absl::Status Receive() {
    return wire::Receive(peer_.get(), MSG_DONTWAIT).status();
  }

  FakeClock clock_;
  std::unique_ptr<Loop> loop_;
  Closer closer_;
  Quotas quotas_;
  std::string broken_;
  Channel::Shared shared_{
      .loop = nullptr,
      .closer = &closer_,
      .quotas = &quotas_,
      .handlers = {.message = [](SessionId, wire::Message&) {},
                   .ended = [](SessionId) {},
                   .broken = [this](SessionId,
                                    const std::string& why) { broken_ = why; },
                   .gone = [](SessionId) {}}};
  UniqueFd peer_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(ChannelTest, APeerThatReadsNothingHasStalled) {
  SendEight();
  SendEight();
  clock_.Advance(Channel::kStallLimit - absl::Milliseconds(1));
  EXPECT_FALSE(channel_->HasStalled(clock_.Now()));
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(channel_->HasStalled(clock_.Now()));
}

// The kernel reports room a moment before it counts the descriptors as
// received. Guards against a retry only 100 ms later, when the session has been
// ended.
TEST_F(ChannelTest, APeerThatReadsJustBeforeTheLimitHasNotStalled) {
  SendEight();
  SendEight();
  clock_.Advance(Channel::kStallLimit - absl::Milliseconds(50));
  channel_->Retry(clock_.Now());  // the peer has read nothing yet
  EXPECT_GT(channel_->retry_at(), channel_->stall_deadline());
  ASSERT_THAT(Receive(), IsOk());
  clock_.Advance(absl::Milliseconds(50));
  EXPECT_FALSE(channel_->HasStalled(clock_.Now()));
  EXPECT_THAT(Receive(), IsOk());  // the packet that waited
  EXPECT_EQ(channel_->stall_deadline(), absl::InfiniteFuture());
  EXPECT_TRUE(shared_.queued.empty()) << "an empty channel is not in the queue";
  EXPECT_EQ(broken_, "");
}

}  // namespace
}  // namespace sluice::daemon
