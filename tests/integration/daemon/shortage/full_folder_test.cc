// Tests a full runtime folder: /run is a tmpfs, and any program's log may fill
// it.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/driver.h"
#include "tests/integration/daemon/admin_stub.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/kept_rank.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

// A tmpfs for all files of a test, which only this process and its children
// see.
class FullFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root may mount a tmpfs";
    static const bool own = [] {
      return unshare(CLONE_NEWNS) == 0 &&
             mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    }();
    ASSERT_TRUE(own) << errno;
    ASSERT_EQ(mount("none", place_.path().c_str(), "tmpfs", 0,
                    "size=256k,nr_inodes=64"),
              0);
    setenv("TMPDIR", place_.path().c_str(), 1);
  }
  void TearDown() override {
    unsetenv("TMPDIR");
    umount2(place_.path().c_str(), MNT_DETACH);
  }

  // Fills the folder until neither a byte nor a file fits any more.
  void Fill() {
    const int fd = open(place_.File("filler").c_str(),
                        O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    const std::string page(4096, 'x');
    while (write(fd, page.data(), page.size()) > 0) {
    }
    EXPECT_EQ(errno, ENOSPC);
    close(fd);
    for (;;) {
      const std::string name = place_.File(fmt::format("f{}", files_));
      const int file = open(name.c_str(), O_CREAT | O_CLOEXEC, 0600);
      if (file < 0) break;
      close(file);
      ++files_;
    }
    EXPECT_EQ(errno, ENOSPC);
  }
  void MakeRoom() {
    unlink(place_.File("filler").c_str());
    while (files_ > 0)
      unlink(place_.File(fmt::format("f{}", --files_)).c_str());
  }

  const TempDir place_;
  int files_ = 0;
};

TEST_F(FullFolder, RanksAttachAndLease) {
  RunningDaemon daemon;
  Fill();
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(8)), IsOk());
  EXPECT_THAT(client.Lease(wire::Lease::HOST, MiB(16)), IsOk());
}

TEST_F(FullFolder, TheLimitThatWasStoredLastIsKept) {
  const std::string toml =
      fmt::format("[policy]\nfolder = \"{}\"\n", place_.File("state"));
  RunningDaemon daemon(toml);
  const auto stub = AdminStub(daemon);
  const auto allow = [&](uint64_t bytes) {
    admin::SetBudgetRequest set;
    set.set_job("tune");
    set.set_gpu_bytes(bytes);
    grpc::ClientContext context;
    admin::SetBudgetReply limits;
    return stub->SetBudget(&context, set, &limits);
  };
  ASSERT_TRUE(allow(MiB(8).size()).ok());
  Fill();
  const grpc::Status refused = allow(MiB(1).size());
  EXPECT_THAT(refused.error_message(),
              AllOf(HasSubstr("nothing was changed"),
                    HasSubstr("No space left on device")));
  MakeRoom();
  daemon.KillAndStartNext();
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("tune"), IsOk());
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(8)), IsOk());
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("its limit of 8 MiB")));
}

// Guards against daemons that end because they cannot serve administrators,
// until so many deaths freeze the next daemon.
TEST_F(FullFolder, TheDaemonsDeathEndsNoSession) {
  KeptDaemon daemon("[http]\nlisten = \"127.0.0.1:0\"\n");
  daemon.Start();
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto leased,
                              client.Lease(wire::Lease::GPU, MiB(8)));
  // Keeps the simulated node open, as each rank does, so that the next daemon
  // need not make the node's files again.
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto driver,
                              device::OpenSimDriver(daemon.File("sim")));
  Fill();
  daemon.KillAndStart();
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(4)), IsOk());
  MakeRoom();
  EXPECT_THAT(client.Free(leased.body.granted().lease_id()), IsOk());
  EXPECT_TRUE(daemon.WaitForLog("administrators are served")) << daemon.Log();
}

TEST_F(FullFolder, ADaemonsStartFailsWithTheReason) {
  KeptDaemon daemon;
  // The log gets its page of the tmpfs before the tmpfs is full.
  std::ofstream(daemon.File("stderr")) << "log\n";
  Fill();
  EXPECT_NE(daemon.StartThatFails(), 0);
  EXPECT_TRUE(daemon.WaitForLog("No space left on device")) << daemon.Log();
  MakeRoom();
  daemon.Start();
}

}  // namespace
}  // namespace sluice::testing
