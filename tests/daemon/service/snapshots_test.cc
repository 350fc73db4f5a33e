// Tests many queries: one snapshot answers all of them, users take turns, and
// snapshots take only a part of the loop's time.
#include "daemon/service/admin/snapshots.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::FakeClock;
using ::sluice::testing::IsOk;

Snapshots::View ViewOf(uint32_t uid, bool text = false) {
  return {.principal = Principal{uid, "/a"}, .text = text};
}

class SnapshotsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loop = Loop::Make(&real_);
    ASSERT_THAT(loop, IsOk());
    loop_ = *std::move(loop);
    snapshots_ = std::make_unique<Snapshots>(
        loop_.get(), &clock_,
        [this](const Snapshots::View& view) {
          taken_.push_back(view.principal ? view.principal->uid : 0);
          clock_.Advance(kCost);
          Snapshot snapshot;
          snapshot.generation = taken_.size();
          return snapshot;
        },
        [this](const Snapshot&) {
          rendered_on_ = std::this_thread::get_id();
          return std::string(length_, 'x');
        });
    thread_ = std::thread([this] { loop_->Run(); });
  }
  void TearDown() override {
    loop_->Stop();
    thread_.join();
    snapshots_.reset();
  }
  void OnLoop(const std::function<void()>& work) {
    ASSERT_TRUE(loop_->Call(work, absl::Seconds(10)));
  }
  void Ask(const Snapshots::View& view) {
    snapshots_->Ask(view, [this](const absl::StatusOr<Snapshots::Answer>& a) {
      ASSERT_THAT(a, IsOk());
      answers_.push_back(*a);
      ++answered_;
    });
  }
  void Await(int count) {
    while (answered_ < count) std::this_thread::yield();
  }

  static constexpr absl::Duration kCost = absl::Milliseconds(3);
  MonotonicClock real_;
  FakeClock clock_;
  std::unique_ptr<Loop> loop_;
  size_t length_ = 10;
  std::atomic<std::thread::id> rendered_on_;
  std::vector<uint32_t> taken_;
  std::vector<Snapshots::Answer> answers_;
  std::atomic<int> answered_ = 0;
  std::unique_ptr<Snapshots> snapshots_;
  std::thread thread_;
};

TEST_F(SnapshotsTest, QueriesForOneViewShareAMemfdMadeByAnotherThread) {
  length_ = Snapshots::kMaxInline + 1;
  OnLoop([&] {
    for (int i = 0; i < 100; ++i) Ask(ViewOf(7, /*text=*/true));
  });
  Await(100);
  OnLoop([&] {
    EXPECT_EQ(taken_, std::vector<uint32_t>{7});
    for (const auto& answer : answers_) {
      EXPECT_EQ(answer.memfd, answers_[0].memfd);
    }
    SLUICE_ASSERT_OK_AND_ASSIGN(const std::string text,
                                wire::FromMemfd(*answers_[0].memfd));
    EXPECT_EQ(text.size(), length_);
  });
  EXPECT_NE(rendered_on_.load(), thread_.get_id());
}

TEST_F(SnapshotsTest, SnapshotsTakeATenthOfTheTimeAndUsersTakeTurns) {
  OnLoop([&] { Ask(ViewOf(1)); });
  Await(1);
  OnLoop([&] {
    // User 2's view is taken between the two that user 1 requests before it.
    for (const bool observer : {false, true}) {
      Ask({.principal = Principal{1, "/a"}, .observer = observer});
    }
    Ask(ViewOf(2));
    // The next snapshot waits nine times as long as the last one took.
    EXPECT_EQ(snapshots_->deadline(), clock_.Now() + 9 * kCost);
    clock_.Advance(8 * kCost);
    snapshots_->Expire();
    EXPECT_EQ(taken_.size(), 1u);
    for (int i = 0; i < 3; ++i) {
      clock_.Advance(9 * kCost);
      snapshots_->Expire();
    }
    EXPECT_EQ(taken_, (std::vector<uint32_t>{1, 1, 2, 1}));
    EXPECT_EQ(answers_.size(), 4u);
    EXPECT_EQ(snapshots_->deadline(), absl::InfiniteFuture());
  });
}

// The answer includes everything that a client did before its query.
TEST_F(SnapshotsTest, AnAnswerIsNeverOlderThanItsQuery) {
  OnLoop([&] { Ask(ViewOf(1)); });
  Await(1);
  OnLoop([&] {
    Ask(ViewOf(1));
    EXPECT_EQ(answers_.size(), 1u);
    clock_.Advance(9 * kCost);
    snapshots_->Expire();
    EXPECT_EQ(answers_.back().data->generation, 2u);
  });
}

TEST_F(SnapshotsTest, ClearDropsWaitingQueries) {
  OnLoop([&] { Ask(ViewOf(1)); });
  Await(1);
  OnLoop([&] {
    Ask(ViewOf(1));
    snapshots_->Clear();
    EXPECT_EQ(snapshots_->deadline(), absl::InfiniteFuture());
    clock_.Advance(9 * kCost);
    snapshots_->Expire();
    EXPECT_EQ(taken_.size(), 1u);
  });
}

}  // namespace
}  // namespace sluice::daemon
