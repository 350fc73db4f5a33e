// Tests several sessions on one loop: which is read, ended or forgotten.
#include "daemon/service/sessions.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::FakeClock;
using sluice::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Principal kUser{1, ""};

class SessionsTest : public ::testing::Test {
 protected:
  SessionsTest() : quotas_(SharesOf({}, 4096)) {}

  void SetUp() override {
    auto loop = Loop::Make(&clock_);
    ASSERT_THAT(loop, IsOk());
    loop_ = *std::move(loop);
    auto handover = Handover::Start(Starter(), loop_.get(), &closer_);
    ASSERT_THAT(handover, IsOk());
    handover_ = *std::move(handover);
    sessions_ = std::make_unique<Sessions>(
        Channel::Shared{
            .loop = loop_.get(),
            .closer = &closer_,
            .quotas = &quotas_,
            .handlers = {
                .message =
                    [this](SessionId id, wire::Message& message) {
                      read_.emplace_back(id.value(), message.packet.id());
                    },
                .ended = [this](SessionId id) { ended_.push_back(id.value()); },
                .broken =
                    [this](SessionId id, const std::string& why) {
                      broken_.push_back(why);
                      sessions_->EndSocket(id);
                    },
                .gone = [](SessionId) {}}},
        handover_.get(), /*generation=*/7);
    loop_->SetWork([this] { return sessions_->TakeTurns(); });
  }
  void TearDown() override {
    sessions_.reset();
    handover_.reset();
  }
  // Adds a session, and returns the peer's end of its socket.
  UniqueFd Watch(SessionId id) {
    int both[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, both), 0);
    EXPECT_THAT(quotas_.Ask(kUser, Resource::kSessions), IsOk());
    sessions_->Watch(id, kUser, UniqueFd(both[0]),
                     UniqueFd(static_cast<int>(
                         syscall(SYS_pidfd_open, getpid(), /*flags=*/0))));
    return UniqueFd(both[1]);
  }
  void Turn() { loop_->RunWhatIsThere(absl::Seconds(1)); }
  void Ask(const UniqueFd& peer, uint64_t id) {
    wire::Packet packet;
    packet.set_id(id);
    packet.mutable_request()->mutable_query();
    EXPECT_THAT(wire::Send(peer.get(), packet), IsOk());
  }
  // Sends as many descriptors as one packet carries. The next such packet waits
  // until the peer has received these.
  void SendFull(SessionId id) {
    Outgoing out;
    const auto null = std::make_shared<const UniqueFd>(
        open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (int i = 0; i < sessions_->most_descriptors(); ++i) {
      out.packet.mutable_reply()->mutable_granted()->add_extent_bytes(1);
      out.fds.push_back(null);
    }
    sessions_->Send(id, std::move(out));
  }

  FakeClock clock_;
  std::unique_ptr<Loop> loop_;
  Closer closer_;
  Quotas quotas_;
  std::unique_ptr<Handover> handover_;
  std::unique_ptr<Sessions> sessions_;
  std::vector<std::pair<uint64_t, uint64_t>> read_;
  std::vector<uint64_t> ended_;
  std::vector<std::string> broken_;
};

TEST_F(SessionsTest, SessionsOfAUserTakeTurnsAndGetTheGeneration) {
  const UniqueFd a = Watch(SessionId(1));
  const UniqueFd b = Watch(SessionId(2));
  for (uint64_t request : {10, 11}) {
    Ask(a, request);
    Ask(b, request);
  }
  Turn();
  EXPECT_THAT(read_, ElementsAre(std::pair(1, 10), std::pair(2, 10),
                                 std::pair(1, 11), std::pair(2, 11)));
  sessions_->Send(SessionId(1), {});
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto message, wire::Receive(a.get()));
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->packet.generation(), 7u);
}

TEST_F(SessionsTest, OnlyAClientThatReadsNothingIsEnded) {
  const UniqueFd deaf = Watch(SessionId(1));
  const UniqueFd late = Watch(SessionId(2));
  for (SessionId id : {SessionId(1), SessionId(2)}) {
    SendFull(id);
    SendFull(id);
  }
  clock_.Advance(Channel::kStallLimit - absl::Milliseconds(50));
  EXPECT_LE(sessions_->deadline(), clock_.Now());
  sessions_->Expire();
  EXPECT_THAT(wire::Receive(late.get()), IsOk());
  clock_.Advance(absl::Milliseconds(50));
  sessions_->Expire();
  EXPECT_THAT(broken_, ElementsAre(HasSubstr("read nothing for 5 s")));
  EXPECT_FALSE(sessions_->Find(SessionId(1))->open());
  EXPECT_TRUE(sessions_->Find(SessionId(2))->open());
  EXPECT_THAT(wire::Receive(late.get()), IsOk());
}

TEST_F(SessionsTest, AForgottenSessionIsUncountedAndSentNothing) {
  UniqueFd peer = Watch(SessionId(1));
  peer.Reset();
  Turn();
  EXPECT_THAT(ended_, ElementsAre(1u));
  sessions_->EndSocket(SessionId(1));
  sessions_->Forget(SessionId(1));
  EXPECT_EQ(sessions_->Find(SessionId(1)), nullptr);
  EXPECT_EQ(quotas_.used(kUser, Resource::kSessions), 0);
  sessions_->Send(SessionId(1), {});
  Turn();
  EXPECT_THAT(broken_, IsEmpty());
}

TEST_F(SessionsTest, ASessionLeftToTheNextDaemonSeesNoEnd) {
  const UniqueFd peer = Watch(SessionId(1));
  const UniqueFd kept(dup(sessions_->Find(SessionId(1))->socket().get()));
  sessions_->Leave();
  sessions_.reset();
  EXPECT_TRUE(
      absl::IsUnavailable(wire::Receive(peer.get(), MSG_DONTWAIT).status()));
}

}  // namespace
}  // namespace sluice::daemon
