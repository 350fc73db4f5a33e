#include "client/train/launch/peer_line.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"

namespace sluice::train {
namespace {

// The news of a death that one rank received.
class News {
 public:
  PeerLine::OnDeath handler() {
    return [this](const std::string& what) { told_.set_value(what); };
  }
  bool Waits(std::chrono::milliseconds limit) {
    return future_.wait_for(limit) == std::future_status::timeout;
  }
  // Returns the news, or "nothing" after a minute.
  std::string Get() {
    return Waits(std::chrono::seconds(60)) ? "nothing" : future_.get();
  }

 private:
  std::promise<std::string> told_;
  std::future<std::string> future_ = told_.get_future();
};

class PeerLineTest : public ::testing::Test {
 protected:
  PeerLineTest() {
    lines_.push_back(*PeerLine::Hold(news_[0].handler()));
    for (int rank = 1; rank < 4; ++rank) {
      lines_.push_back(*PeerLine::Reach("127.0.0.1", lines_[0]->place(), rank,
                                        news_[rank].handler()));
    }
  }
  void Die(int rank) { lines_[rank].reset(); }
  bool AllWait() {
    for (News& news : news_) {
      if (!news.Waits(std::chrono::milliseconds(300))) return false;
    }
    return true;
  }

  News news_[4];
  std::vector<std::unique_ptr<PeerLine>> lines_;
};

TEST_F(PeerLineTest, ADeathIsReportedToAllOtherRanks) {
  EXPECT_TRUE(AllWait());
  Die(2);
  for (const int rank : {0, 1, 3}) EXPECT_EQ(news_[rank].Get(), "rank 2");
}

TEST_F(PeerLineTest, Rank0sDeathIsSeenByAllOtherRanks) {
  Die(0);
  for (const int rank : {1, 2, 3}) EXPECT_EQ(news_[rank].Get(), "rank 0");
}

// A rank on the dead rank's node passes the daemon's message to all ranks.
TEST_F(PeerLineTest, ARanksMessageComesBeforeTheClosedConnection) {
  Die(2);
  lines_[1]->Tell("rank 2 of job demo: killed by signal 9");
  for (const int rank : {0, 3}) {
    EXPECT_EQ(news_[rank].Get(), "rank 2 of job demo: killed by signal 9");
  }
  EXPECT_TRUE(news_[1].Waits(std::chrono::milliseconds(0)));
}

TEST_F(PeerLineTest, Rank0ReportsItsOwnFailure) {
  ASSERT_TRUE(AllWait());  // all are connected
  lines_[0]->Tell("rank 0 (shard 3\nis truncated)");
  Die(0);
  EXPECT_EQ(news_[3].Get(), "rank 0 (shard 3");
}

TEST_F(PeerLineTest, AnAnnouncedEndIsNoDeath) {
  lines_[3]->End();
  Die(3);
  EXPECT_TRUE(AllWait());
  lines_[0]->End();
  absl::SleepFor(absl::Milliseconds(300));
  Die(0);
  EXPECT_TRUE(AllWait());
}

TEST_F(PeerLineTest, OtherConnectionsCountAsNoRanks) {
  for (const std::string& says :
       {std::string("1 2\n"), std::string("died rank 1\n"), std::string("")}) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<uint16_t>(lines_[0]->place().port));
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
    ASSERT_EQ(write(fd, says.data(), says.size()),
              static_cast<ssize_t>(says.size()));
    close(fd);
  }
  absl::SleepFor(PeerLine::kNaming);
  EXPECT_TRUE(AllWait());
}

}  // namespace
}  // namespace sluice::train
