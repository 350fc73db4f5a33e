// Tests that every connection gets an answer, and when the socket's path is
// removed.
#include "daemon/service/session_listener.h"

#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "proto/wire.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using ::testing::HasSubstr;

class SessionListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loop = Loop::Make(&clock_);
    ASSERT_THAT(loop, IsOk());
    loop_ = *std::move(loop);
  }
  void Serve(bool stays = false) {
    auto made = wire::Listen(path_, 0600);
    ASSERT_THAT(made, IsOk());
    auto listener = SessionListener::Of({.path = path_,
                                         .loop = loop_.get(),
                                         .closer = &closer_,
                                         .accepted =
                                             [this](UniqueFd& socket) {
                                               if (answer_.ok())
                                                 taken_ = std::move(socket);
                                               return answer_;
                                             }},
                                        *std::move(made), stays);
    ASSERT_THAT(listener, IsOk());
    listener_ = *std::move(listener);
    listener_->Start();
  }
  UniqueFd Connect() {
    auto client = wire::Connect(path_);
    EXPECT_THAT(client, IsOk());
    return *std::move(client);
  }
  void Turn() { loop_->RunWhatIsThere(absl::Seconds(1)); }
  // Returns the error line that the client received.
  static std::string Told(const UniqueFd& client) {
    const auto message = wire::Receive(client.get());
    EXPECT_THAT(message, IsOk());
    return message.ok() && message->has_value()
               ? (*message)->packet.reply().error().message()
               : "nothing";
  }

  MonotonicClock clock_;
  const testing::TempDir folder_;
  const std::string path_ = folder_.File("session.sock");
  std::unique_ptr<Loop> loop_;
  Closer closer_;
  absl::Status answer_;
  UniqueFd taken_;
  std::unique_ptr<SessionListener> listener_;
};

TEST_F(SessionListenerTest, AConnectionIsAcceptedOrGetsTheReasonWhyNot) {
  Serve();
  const UniqueFd first = Connect();
  Turn();
  EXPECT_TRUE(taken_);
  answer_ = absl::ResourceExhaustedError("too many");
  const UniqueFd second = Connect();
  Turn();
  EXPECT_EQ(Told(second), "too many");
}

TEST_F(SessionListenerTest, AClientGetsAnErrorIfNoDescriptorIsLeft) {
  Serve();
  const UniqueFd client = Connect();
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const UniqueFd next(dup(client.get()));  // the next free number
  const rlimit none = {static_cast<rlim_t>(next.get()), limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Turn();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_FALSE(taken_);
  EXPECT_THAT(Told(client), HasSubstr("no file descriptors left"));
}

// Not even the spare descriptor can be used.
TEST_F(SessionListenerTest, WithoutAnyDescriptorClientsAreAcceptedAfterAPause) {
  Serve();
  const UniqueFd client = Connect();
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Turn();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_FALSE(taken_);
  const absl::Time end = listener_->deadline();
  ASSERT_LT(end, absl::InfiniteFuture());
  listener_->Expire(end);
  EXPECT_EQ(listener_->deadline(), absl::InfiniteFuture());
  Turn();
  EXPECT_TRUE(taken_);
}

TEST_F(SessionListenerTest, AConnectionAfterStopIsNotAccepted) {
  Serve();
  listener_->Stop();
  const UniqueFd client = Connect();
  Turn();
  EXPECT_FALSE(taken_);
  EXPECT_EQ(listener_->deadline(), absl::InfiniteFuture());
}

TEST_F(SessionListenerTest, RemoveKeepsThePathOfALastingSocket) {
  Serve();
  listener_->Remove();
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
  Serve(/*stays=*/true);
  listener_->Remove();
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
}

TEST_F(SessionListenerTest, APathLeftToTheNextDaemonIsNotRemoved) {
  Serve();
  listener_->LeavePath();
  listener_->Remove();
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace sluice::daemon
