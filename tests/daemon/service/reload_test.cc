#include "daemon/service/reload/reload.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

class ReloadTest : public ::testing::Test {
 protected:
  ReloadTest() { SLUICE_CHECK(mkfifo(gate_.c_str(), 0600) == 0); }
  // Returns a reload that runs this script as its child, with the gate as $1.
  Reload Of(const std::string& script) {
    return Reload({"/bin/sh", "-c", script, "check", gate_}, loop_.get(),
                  [this](absl::Status said) {
                    said_.push_back(std::move(said));
                    loop_->Stop();
                  });
  }
  // Sends this line to the child that waits at the gate.
  void Open(const std::string& line) { std::ofstream(gate_) << line << "\n"; }
  // Waits until a child has made the file $1.there.
  void WaitForWord() {
    while (access((gate_ + ".there").c_str(), F_OK) != 0) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  testing::TempDir folder_;
  const std::string gate_ = folder_.File("gate");
  const MonotonicClock clock_;
  std::unique_ptr<Loop> loop_ = Loop::Make(&clock_).value();
  std::vector<absl::Status> said_;
};

TEST_F(ReloadTest, AGoodConfigurationIsReportedAsOk) {
  Reload reload = Of("echo 'warning: few' >&2; exit 0");
  reload.Ask();
  EXPECT_LT(reload.deadline(), absl::InfiniteFuture());
  loop_->Run();
  ASSERT_EQ(said_.size(), 1);
  EXPECT_THAT(said_[0], IsOk());
  EXPECT_EQ(reload.deadline(), absl::InfiniteFuture());
}

TEST_F(ReloadTest, ABadConfigurationIsReportedWithItsErrorLine) {
  Reload reload =
      Of("printf 'warning: few\\nerror: what, limit\\nmore' >&2; exit 2");
  reload.Ask();
  loop_->Run();
  EXPECT_THAT(said_.at(0),
              StatusIs(absl::StatusCode::kFailedPrecondition, "what, limit"));
}

TEST_F(ReloadTest, AProgramThatDiesSilentlyIsAnError) {
  Reload reload = Of("kill -9 $$");
  reload.Ask();
  loop_->Run();
  EXPECT_THAT(said_.at(0), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("/bin/sh ended")));
}

TEST_F(ReloadTest, AMissingProgramIsAnError) {
  Reload reload({folder_.File("none")}, loop_.get(),
                [this](absl::Status said) { said_.push_back(said); });
  reload.Ask();
  ASSERT_EQ(said_.size(), 1);
  EXPECT_FALSE(said_[0].ok());
}

// A check that began before a request may not have seen the file's last change.
TEST_F(ReloadTest, OnlyTheLatestRequestIsAnswered) {
  Reload reload =
      Of("read line < $1; echo > $1.there; echo \"error: $line\" >&2; exit 2");
  reload.Ask();
  reload.Ask();
  reload.Ask();
  std::thread writer([this] {
    Open("first");
    WaitForWord();  // the first child has closed the gate
    Open("second");
  });
  loop_->Run();
  writer.join();
  ASSERT_EQ(said_.size(), 1);
  EXPECT_THAT(said_[0].message(), HasSubstr("second"));
}

TEST_F(ReloadTest, AProgramThatTakesTooLongIsKilled) {
  Reload reload = Of("read line < $1");
  reload.Ask();
  reload.Expire(reload.deadline() - absl::Milliseconds(1));
  reload.Expire(reload.deadline());
  // The loop waits for the child's end without a timer.
  EXPECT_EQ(reload.deadline(), absl::InfiniteFuture());
  loop_->Run();
  EXPECT_THAT(said_.at(0), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("ended with status 9 ")));
}

TEST_F(ReloadTest, TheDestructorLeavesNoChild) {
  {
    Reload reload = Of("echo > $1.there; read line < $1");
    reload.Ask();
    WaitForWord();
  }
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  EXPECT_TRUE(said_.empty());
}

}  // namespace
}  // namespace sluice::daemon
