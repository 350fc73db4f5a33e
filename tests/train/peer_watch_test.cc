#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "client/train/launch/peer_line.h"
#include "proto/base/peer_fault.h"

namespace sluice::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = client::SessionEvent::Kind;

// A session that sends a test's events. Every request aborts the process.
class FakeSession final : public client::Session {
 public:
  void Tell(Kind kind, const std::string& detail) {
    client::SessionEvent event;
    event.kind = kind;
    event.detail = detail;
    handler_(event);
  }

  client::NodeLimits limits() const override { std::abort(); }
  device::Driver& driver() override { std::abort(); }
  client::GrantGate& grants() override { std::abort(); }
  absl::Status MeasureOutside() override { std::abort(); }
  absl::StatusOr<std::unique_ptr<client::Region>> LeaseGpu(Bytes,
                                                           Wait) override {
    std::abort();
  }
  absl::StatusOr<std::unique_ptr<client::Region>> LeaseHost(Bytes,
                                                            Wait) override {
    std::abort();
  }
  absl::StatusOr<plan::NodePlan> Plan(const plan::RankProfile&,
                                      absl::Duration) override {
    std::abort();
  }
  std::shared_ptr<const plan::NodePlan> ChangedPlan() override { std::abort(); }
  absl::Status AnswerChange(PlanId, bool, const std::string&) override {
    std::abort();
  }
  absl::Status Report(const StepReport&) override { std::abort(); }
  void OnEvent(EventHandler handler) override { handler_ = std::move(handler); }

 private:
  EventHandler handler_;
};

class PeerWatchTest : public ::testing::Test {
 protected:
  PeerWatchTest()
      : watch_([](const absl::Status&) {}, [this] { ++evictions_; },
               [](const std::string&) {}) {
    watch_.Attach(session_,
                  [this](const std::string& why) { aborts_.push_back(why); });
  }

  FakeSession session_;
  std::vector<std::string> aborts_;
  int evictions_ = 0;
  PeerWatch watch_;
};

TEST_F(PeerWatchTest, APeersDeathAbortsOnceAndNamesThePeer) {
  session_.Tell(Kind::kPeerDied, "rank 0 of job demo");
  session_.Tell(Kind::kPeerDied, "rank 2 of job demo");
  EXPECT_THAT(aborts_, ElementsAre("rank 0 of job demo"));
  EXPECT_EQ(watch_.why().message(),
            "rank 0 of job demo ended; this rank ends too");
}

TEST_F(PeerWatchTest, ADeathOnAnotherNodeAbortsLikeADeathOnThisNode) {
  watch_.PeerDied("rank 2");
  session_.Tell(Kind::kPeerDied, "rank 0 of job demo");
  EXPECT_THAT(aborts_, ElementsAre("rank 2"));
  EXPECT_EQ(watch_.why().message(), "rank 2 ended; this rank ends too");
}

// A collective fails before the rank learns of the death.
TEST_F(PeerWatchTest, ALostCollectiveWaitsForTheNewsOfADeath) {
  std::thread news([this] {
    absl::SleepFor(absl::Milliseconds(100));
    watch_.PeerDied("rank 2");
  });
  const absl::Status lost =
      CausedByPeer(absl::UnavailableError("a sum failed"));
  EXPECT_EQ(watch_.Explain(lost, false).message(),
            "rank 2 ended; this rank ends too");
  news.join();
}

// An evicted rank still needs its collectives: it finishes its step, and saves.
TEST_F(PeerWatchTest, AnEvictionAbortsNothing) {
  session_.Tell(Kind::kEvicted, "by an administrator");
  session_.Tell(Kind::kEvicted, "by an administrator");
  session_.Tell(Kind::kDisconnected, "the daemon has gone");
  EXPECT_EQ(evictions_, 1);
  EXPECT_THAT(aborts_, IsEmpty());
  EXPECT_FALSE(watch_.why().ok());
  EXPECT_FALSE(IsCausedByPeer(watch_.why()));
}

TEST_F(PeerWatchTest, APeersNormalEndAbortsNothing) {
  watch_.Disarm();
  session_.Tell(Kind::kPeerDied, "rank 0 of job demo");
  EXPECT_THAT(aborts_, IsEmpty());
}

TEST_F(PeerWatchTest, AnEvictionAfterTheEndStopsNothing) {
  watch_.Disarm();
  session_.Tell(Kind::kEvicted, "by an administrator");
  EXPECT_EQ(evictions_, 0);
}

TEST_F(PeerWatchTest, ASecondAttachReplacesTheFirst) {
  watch_.Attach(session_, {});
  session_.Tell(Kind::kPeerDied, "rank 0 of job demo");
  EXPECT_THAT(aborts_, IsEmpty());
  EXPECT_TRUE(IsCausedByPeer(watch_.why()));
}

// If a rank failed first, and its peer ended because of that, the rank is not
// the peer's victim.
TEST_F(PeerWatchTest, ADeathExplainsOnlyTheErrorsThatItCaused) {
  const absl::Status own = absl::DataLossError("shard 3 is truncated");
  const absl::Status lost =
      CausedByPeer(absl::UnavailableError("a sum failed"));
  EXPECT_EQ(watch_.Explain(lost, false), lost);
  session_.Tell(Kind::kPeerDied, "rank 0 of job demo");
  EXPECT_EQ(watch_.Explain(own, false), own);
  EXPECT_TRUE(watch_.Explain(absl::OkStatus(), true).ok());
  const absl::Status explained = watch_.Explain(lost, false);
  EXPECT_EQ(explained, watch_.why());
  EXPECT_TRUE(IsCausedByPeer(explained));
}

TEST_F(PeerWatchTest, AnEvictionExplainsEveryEndBeforeTheLastStep) {
  session_.Tell(Kind::kEvicted, "by an administrator");
  EXPECT_TRUE(watch_.Explain(absl::OkStatus(), false).ok());
  for (const absl::Status& end :
       {watch_.Explain(absl::OkStatus(), true),
        watch_.Explain(CausedByPeer(absl::UnavailableError("a sum")), false)}) {
    EXPECT_EQ(end, watch_.why());
    EXPECT_FALSE(IsCausedByPeer(end));
  }
}

}  // namespace
}  // namespace sluice::train
