// A daemon that runs out of descriptors, or has too many in flight, ends no
// honest client's session.
#include <sys/stat.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "tests/attacks/attackers.h"
#include "tests/attacks/scene.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

// Guards against ending a session because its descriptors "did not all arrive".
TEST(Descriptors, DaemonWithoutFreeDescriptorsKeepsSessions) {
  RunningDaemon daemon("", {.open_files = 128});
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("honest"), IsOk());
  absl::Status full;
  for (int i = 0; full.ok() && i < 200; ++i) {
    full = client.Lease(wire::Lease::GPU, KiB(64)).status();
  }
  ASSERT_THAT(full, ::testing::Not(IsOk()));
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd profile,
                              wire::ToMemfd("profile", "no profile"));
  wire::Request submit;
  submit.mutable_submit_profile();
  // The error may be that the memfd is no profile, or that it did not arrive.
  const auto answer = client.Call(submit, {profile.get()});
  ASSERT_FALSE(answer.ok());
  EXPECT_FALSE(absl::IsUnavailable(answer.status())) << answer.status();
  EXPECT_THAT(client.Free(1), IsOk());
}

// Guards against a daemon without CAP_SYS_RESOURCE that gets ETOOMANYREFS for
// every client while one client reads nothing, and then ends honest sessions.
TEST(Descriptors, UnreadDescriptorsOfAnotherUserEndNoSession) {
  if (geteuid() != 0)
    GTEST_SKIP() << "only root can start processes of other users";
  Scene scene("", {.open_files = 1024, .user = 61235});
  scene.Attack([&] { NeverRead(scene.socket(), 25, 60); });
  ExpectUnharmed(scene.Suffer("unread descriptors, plain daemon"));
}

}  // namespace
}  // namespace sluice::testing
