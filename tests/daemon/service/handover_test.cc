// Tests the saving of the state if it is too large for its file, or if the
// store fails.
#include "daemon/service/takeover/handover.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/daemon/store/fake_store.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using ::testing::HasSubstr;

UniqueFd Memfd() { return UniqueFd(memfd_create("memory", MFD_CLOEXEC)); }

class HandoverTest : public ::testing::Test {
 protected:
  HandoverTest() : store_(folder_.File("store")) {
    Starter starter;
    starter.notify_socket = folder_.File("store");
    starter.store_size = 100;
    starter.open_files = 1024;
    loop_ = Loop::Make(&node_.clock).value();
    auto handover = Handover::Start(std::move(starter), loop_.get(), &closer_,
                                    {.checkpoint = KiB(8), .records = KiB(2)});
    SLUICE_CHECK_OK(handover.status());
    handover_ = *std::move(handover);
    handover_->Begin(node_.core, Now());
    state_ = NextOfState()->fd.Duplicate().value();
  }
  absl::Time Now() const { return node_.clock.Now(); }
  void Save() { handover_->Save(node_.core, Now()); }
  // Returns the store's next message about the state.
  std::optional<testing::FakeStore::Message> NextOfState(int wait_ms = 2000) {
    while (auto message = store_.Next(wait_ms)) {
      if (message->text.find("FDNAME=state") != std::string::npos) {
        return message;
      }
    }
    return std::nullopt;
  }
  StateFile::Contents Saved() const {
    auto file = StateFile::Open(state_.get());
    SLUICE_CHECK_OK(file.status());
    return (*file)->TakeContents();
  }
  // Returns whether the state is marked as given up, so that the next daemon
  // would not use it.
  bool IsGivenUp() const {
    const auto opened = OpenSaved(state_.get());
    return opened.ok() && *opened == nullptr;
  }
  // Returns the number of sessions that the next daemon would take over.
  size_t SessionsIn(const UniqueFd& state) const {
    auto file = StateFile::Open(state.get());
    SLUICE_CHECK_OK(file.status());
    Core fresh(node_.core.config(), Now());
    auto read = ReadCore((*file)->TakeContents(), fresh.Save());
    SLUICE_CHECK_OK(read.status());
    return read->sessions.size();
  }
  // Attaches more ranks than fit into the state.
  std::vector<SessionId> AttachMany() {
    std::vector<SessionId> ranks;
    for (int i = 0; i < 40; ++i) {
      ranks.push_back(node_.Attach(fmt::format("{:0>200}", i), 0));
      Save();
    }
    return ranks;
  }

  // Returns when no task is left: 1 s never passes on `node_`'s clock.
  void RunTasks() { loop_->RunWhatIsThere(absl::Seconds(1)); }
  // Lets the store accept all messages until the handover saves again, and
  // takes the state's new descriptor from them.
  void AnswerUntilSaved() {
    const absl::Time late = absl::Now() + absl::Seconds(10);
    while (!handover_->saves() && absl::Now() < late) {
      while (auto message = store_.Next(/*wait_ms=*/50)) {
        taken_ += message->text + "\n";
        if (absl::StrContains(message->text, "FDSTORE=1\nFDNAME=state\n")) {
          state_ = std::move(message->fd);
        }
      }
      RunTasks();
      Save();
    }
    EXPECT_TRUE(handover_->saves());
  }

  testing::TempDir folder_;
  std::string taken_;  // messages, filled by AnswerUntilSaved
  testing::FakeStore store_;
  CoreDriver node_;
  Closer closer_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Handover> handover_;
  UniqueFd state_;
};

// Guards against giving up saving for the rest of the daemon's life.
TEST_F(HandoverTest, SavingContinuesOnceTheStateFitsAgain) {
  const SessionId first = node_.Attach("first", 0);
  Save();
  EXPECT_EQ(SessionsIn(state_), 1u);
  const std::vector<SessionId> many = AttachMany();
  EXPECT_TRUE(IsGivenUp());
  // descriptors are still kept, for when the state fits
  EXPECT_TRUE(handover_->keeps());
  EXPECT_FALSE(handover_->saves());
  EXPECT_EQ(handover_->deadline(), Now() + absl::Seconds(1));

  for (const SessionId rank : many) node_.Die(rank);
  node_.clock.Advance(absl::Milliseconds(999));
  Save();
  EXPECT_TRUE(IsGivenUp());
  node_.clock.Advance(absl::Milliseconds(1));
  Save();
  EXPECT_EQ(SessionsIn(state_), 1u);
  EXPECT_EQ(handover_->deadline(), absl::InfiniteFuture());
  EXPECT_TRUE(handover_->saves());
  // Each later change is saved, too.
  node_.Attach("second", 0);
  Save();
  EXPECT_EQ(SessionsIn(state_), 2u);
  node_.Die(first);
  Save();
  EXPECT_EQ(SessionsIn(state_), 1u);
  // The state's descriptor was kept all the time.
  EXPECT_FALSE(NextOfState(/*wait_ms=*/100).has_value());
}

TEST_F(HandoverTest, AStateThatDoesNotFitIsTriedOnceASecond) {
  AttachMany();
  ASSERT_TRUE(IsGivenUp());
  for (int i = 0; i < 3; ++i) {
    node_.clock.Advance(absl::Seconds(1));
    Save();
    EXPECT_EQ(handover_->deadline(), Now() + absl::Seconds(1));
    EXPECT_TRUE(IsGivenUp());
  }
}

// Guards against one refusal that ends saving for the daemon's life.
TEST_F(HandoverTest, ADescriptorRefusedByAFullStoreIsStoredLater) {
  const UniqueFd memory = Memfd();
  int last = 0;
  while (handover_->saves()) {
    handover_->Keep(fmt::format("e{}", ++last), memory.get());
    RunTasks();
  }
  ASSERT_GT(last, 1);
  EXPECT_TRUE(IsGivenUp());
  Save();
  node_.Attach("meanwhile", 0);
  node_.clock.Advance(absl::Seconds(10));
  Save();  // there is no room yet
  RunTasks();
  EXPECT_FALSE(handover_->saves());
  EXPECT_EQ(handover_->deadline(), Now() + absl::Seconds(10));

  handover_->Drop("e1");
  handover_->Drop("e2");
  node_.clock.Advance(absl::Seconds(10));
  AnswerUntilSaved();
  EXPECT_THAT(taken_, HasSubstr(fmt::format("FDNAME=e{}\n", last)));
  EXPECT_EQ(SessionsIn(state_), 1u);
  EXPECT_EQ(handover_->deadline(), absl::InfiniteFuture());
  node_.Attach("later", 0);
  Save();
  EXPECT_EQ(SessionsIn(state_), 2u);
}

TEST_F(HandoverTest, NothingIsSavedUntilAnUnstorableExtentIsDropped) {
  handover_->CannotKeep("e1", absl::InternalError("no descriptor of it"));
  RunTasks();
  node_.clock.Advance(absl::Seconds(10));
  Save();
  RunTasks();
  EXPECT_FALSE(handover_->saves());
  handover_->Drop("e1");
  node_.clock.Advance(absl::Seconds(10));
  AnswerUntilSaved();
}

// Guards against a systemd that is slow for 5 s and thereby ends saving.
TEST_F(HandoverTest, AStoreThatAnswersLateIsAskedAgain) {
  bool waited = false, waits = true;
  handover_->WhenKept([&] { waited = true; });
  while (!waited) RunTasks();
  EXPECT_TRUE(IsGivenUp());
  EXPECT_FALSE(handover_->saves());
  handover_->WhenKept([&] { waits = false; });
  RunTasks();
  EXPECT_FALSE(waits);  // called at once, as the store fails
  node_.Attach("meanwhile", 0);
  AnswerUntilSaved();
  EXPECT_EQ(SessionsIn(state_), 1u);
}

// Guards against a loop that spins until the daemon has ended.
TEST_F(HandoverTest, AFailureAfterTheEndIsNotTriedAgain) {
  handover_->LeaveNothing([] {});
  handover_->CannotKeep("e1", absl::InternalError("no descriptor of it"));
  RunTasks();
  EXPECT_EQ(handover_->deadline(), absl::InfiniteFuture());
}

TEST_F(HandoverTest, AnEndingDaemonDoesNotTryToSaveAgain) {
  AttachMany();
  ASSERT_TRUE(IsGivenUp());
  handover_->LeaveNothing([] {});
  EXPECT_EQ(handover_->deadline(), absl::InfiniteFuture());
}

TEST(Handover, AHandoverNeedsANotifySocketAndAStore) {
  Starter starter;
  starter.open_files = 1024;
  starter.notify_socket = "/notify";
  EXPECT_EQ(Handover::CapacityOf(starter), 0);
  starter.store_size = 10;
  EXPECT_EQ(Handover::CapacityOf(starter), 10);
  starter.notify_socket.clear();
  EXPECT_EQ(Handover::CapacityOf(starter), 0);
}

}  // namespace
}  // namespace sluice::daemon
