// Tests keepers and daemons with a standard error that cannot be written.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "proto/base/unique_fd.h"
#include "tests/daemon/keeper/peer.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::BinaryPath;
using sluice::testing::Child;

class KeeperStderr : public ::testing::Test {
 protected:
  KeeperStderr() {
    EXPECT_EQ(mkfifo(Pipe().c_str(), 0600), 0);
    reader_ = UniqueFd(open(Pipe().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    // The shell opens the pipe, and then executes the keeper.
    keeper_ = Child::Spawn(
        {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>\"" + Pipe() + "\"",
         BinaryPath("sluiced-keeper"), "--runtime-dir", folder_.path(),
         "--program", BinaryPath("storing-daemon")});
  }
  std::string Pipe() const { return log_.File("stderr"); }
  std::string Socket() const { return folder_.File("test.sock"); }

  // Expects that the keeper starts a daemon after each death, with the stored
  // text, and ends with status 0. Only its log lines may be lost.
  void ExpectKeeperWorks(Peer& peer) {
    for (int death = 0; death < 2; ++death) {
      kill(std::stoi(peer.Ask("pid")), SIGKILL);
      EXPECT_EQ(peer.Ask("text"), "text of 0");
    }
    keeper_->Kill(SIGTERM);
    EXPECT_EQ(keeper_->Join(absl::Seconds(20)).exit_code, 0);
  }

  testing::TempDir folder_, log_;
  UniqueFd reader_;
  std::unique_ptr<Child> keeper_;
};

// Guards against a keeper that aborts when it writes its first log line.
TEST_F(KeeperStderr, APipeWithoutAReaderDoesNotStopTheKeeper) {
  Peer peer(Socket());
  reader_.Reset();
  ExpectKeeperWorks(peer);
}

// Guards against a keeper that blocks, and so stores and starts nothing.
TEST_F(KeeperStderr, AFullPipeDoesNotStopTheKeeper) {
  Peer peer(Socket());
  const UniqueFd filler(
      open(Pipe().c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(filler);
  const std::string much(4096, '.');
  while (write(filler.get(), much.data(), much.size()) > 0) {
  }
  while (write(filler.get(), much.data(), 1) > 0) {
  }
  ExpectKeeperWorks(peer);
}

// Guards against an abort, after which a keeper would start the daemon again.
TEST(BadFlag, ABadFlagGivesExitStatus2EvenIfItsReasonIsLost) {
  for (const char* program : {"sluiced", "sluiced-keeper"}) {
    const auto child = Child::Spawn(
        {"/bin/sh", "-c", "exec \"$0\" --no 2>/dev/full", BinaryPath(program)});
    EXPECT_EQ(child->Join().exit_code, 2) << program;
  }
}

}  // namespace
}  // namespace sluice::daemon
