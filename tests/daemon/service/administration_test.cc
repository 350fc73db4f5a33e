// Tests the administrators' settings: what the file has, and what is in force.
#include "daemon/service/admin/administration.h"

#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::HasSubstr;

class AdministrationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loop = Loop::Make(&node_.clock);
    ASSERT_THAT(loop, IsOk());
    loop_ = *std::move(loop);
    snapshots_ = std::make_unique<Snapshots>(
        loop_.get(), &node_.clock,
        [this](const Snapshots::View&) {
          return node_.core.TakeSnapshot(nullptr, node_.clock.Now());
        },
        /*render=*/nullptr);
    administration_ = std::make_unique<Administration>(Administration::Options{
        .loop = loop_.get(),
        .core = &node_.core,
        .snapshots = snapshots_.get(),
        .cgroups = {},
        .write_policy =
            [this](const Policy& policy) {
              written_.push_back(policy);
              return on_write_ ? on_write_() : absl::OkStatus();
            },
        .execute = [this](Effects effects) { node_.Apply(std::move(effects)); },
        .see_copies = [] {}});
    thread_ = std::thread([this] { loop_->Run(); });
  }
  void TearDown() override {
    EndLoop();
    snapshots_.reset();
  }
  void EndLoop() {
    loop_->Stop();
    if (thread_.joinable()) thread_.join();
  }
  absl::Status SetBudget(Bytes gpu) {
    return administration_->Apply(BudgetChange{{.uid = 1}, gpu, {}, "root"})
        .status();
  }
  Policy policy() {
    Policy policy;
    EXPECT_TRUE(loop_->Call([&] { policy = node_.core.live_policy().policy(); },
                            absl::InfiniteDuration()));
    return policy;
  }
  void LeaseEightMib() {
    EXPECT_TRUE(loop_->Call(
        [this] {
          const SessionId rank = node_.Attach("demo", 0);
          EXPECT_THAT(node_.Lease(rank, Gpu(0), MiB(8)), IsOk());
        },
        absl::InfiniteDuration()));
  }

  CoreDriver node_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Snapshots> snapshots_;
  std::vector<Policy> written_;
  std::function<absl::Status()> on_write_;  // null: writing succeeds
  std::unique_ptr<Administration> administration_;
  std::thread thread_;
};

TEST_F(AdministrationTest, ABudgetIsWrittenAndThenInForce) {
  EXPECT_THAT(SetBudget(MiB(4)), IsOk());
  ASSERT_EQ(written_.size(), 1u);
  EXPECT_EQ(written_[0], policy());
}

TEST_F(AdministrationTest, ABudgetThatCannotBeWrittenIsNotInForce) {
  const Policy before = policy();
  on_write_ = [] { return absl::InternalError("the disk is full"); };
  EXPECT_THAT(SetBudget(MiB(4)), StatusIs(absl::StatusCode::kInternal,
                                          HasSubstr("nothing was changed")));
  EXPECT_EQ(policy(), before);
}

TEST_F(AdministrationTest, ABudgetThatIsNotSyncedIsInForceAndReported) {
  on_write_ = [] { return absl::DataLossError("not synced"); };
  EXPECT_THAT(SetBudget(MiB(4)), StatusIs(absl::StatusCode::kDataLoss,
                                          HasSubstr("it is in force")));
  EXPECT_EQ(written_[0], policy());
}

TEST_F(AdministrationTest, TheOldPolicyIsWrittenBackIfABudgetIsRefused) {
  const Policy before = policy();
  on_write_ = [this] {
    if (written_.size() == 1) LeaseEightMib();
    return absl::OkStatus();
  };
  EXPECT_THAT(SetBudget(MiB(4)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_EQ(written_.size(), 2u);
  EXPECT_EQ(written_[1], before);
}

// Guards against the answer "in force, but may not survive a power cut" for a
// refused change.
TEST_F(AdministrationTest, ARefusalIsReportedEvenIfWritingBackIsNotSynced) {
  on_write_ = [this] {
    if (written_.size() == 1) LeaseEightMib();
    return written_.size() == 1 ? absl::OkStatus()
                                : absl::DataLossError("not synced");
  };
  EXPECT_THAT(SetBudget(MiB(4)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

// Guards against a file with a policy that was never in force: the next daemon
// would enforce it.
TEST_F(AdministrationTest, TheOldPolicyIsWrittenBackIfTheLoopEndsFirst) {
  const Policy before = policy();
  on_write_ = [this] {
    EndLoop();
    return absl::OkStatus();
  };
  EXPECT_THAT(SetBudget(MiB(4)), StatusIs(absl::StatusCode::kUnavailable));
  ASSERT_EQ(written_.size(), 2u);
  EXPECT_EQ(written_[1], before);
}

// Guards against a change that is made later, although the error said that
// nothing changed.
TEST_F(AdministrationTest, AChangeThatTimesOutIsNotAppliedLater) {
  const Policy before = policy();
  std::promise<void> go_on;
  on_write_ = [&] {
    if (written_.size() == 1) {
      loop_->Post([&] { go_on.get_future().wait(); });
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(SetBudget(MiB(4)), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(written_.back(), before);
  go_on.set_value();
  EXPECT_EQ(policy(), before);
}

TEST_F(AdministrationTest, ReadsFailOnceTheLoopHasEnded) {
  EXPECT_THAT(administration_->Answers(), IsOk());
  EXPECT_THAT(administration_->Read(), IsOk());
  EXPECT_THAT(administration_->ReadRows(), IsOk());
  EndLoop();
  EXPECT_THAT(administration_->Answers(),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(administration_->Read(),
              StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace sluice::daemon
