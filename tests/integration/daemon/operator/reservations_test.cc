// Tests memory that an administrator reserves for a user.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/admin_stub.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/http.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

TEST(DaemonAdmin, AReservationExcludesOthersAndOutlivesTheDaemon) {
  const TempDir kept;
  const std::string toml = fmt::format(
      "[policy]\nfolder = \"{}/state\"\n"
      "[http]\nlisten = \"127.0.0.1:0\"\n",
      kept.path());
  constexpr uint32_t kNobodyHere = 61999;
  {
    RunningDaemon daemon(toml);
    const auto stub = AdminStub(daemon);
    admin::ReserveRequest reserve;
    reserve.set_uid(kNobodyHere);
    reserve.set_gpu(0);
    reserve.set_bytes(MiB(20).size());
    reserve.set_by("alice");
    admin::ReserveReply done;
    grpc::ClientContext first, second;
    ASSERT_TRUE(stub->Reserve(&first, reserve, &done).ok());
    reserve.set_uid(kNobodyHere + 1);
    const grpc::Status refused = stub->Reserve(&second, reserve, &done);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(refused.error_message(),
                HasSubstr("with what others have reserved, 40 MiB would"));
    daemon.process().Kill(SIGKILL);  // no chance to write anything
    daemon.process().Join();
  }
  RunningDaemon daemon(toml);
  const auto stub = AdminStub(daemon);
  grpc::ClientContext status;
  admin::StatusReply told;
  ASSERT_TRUE(stub->Status(&status, {}, &told).ok());
  const auto snapshot = nlohmann::json::parse(told.json());
  EXPECT_EQ(snapshot["reservations"][0]["by"], "alice");
  EXPECT_EQ(snapshot["gpus"][0]["reserved_bytes"], MiB(20).count());
  EXPECT_THAT(HttpGet(daemon.ReadyField("http"), "/metrics"),
              HasSubstr("sluice_pool_reserved_bytes{gpu=\"0\""));
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient rank,
                              RawClient::Connect(daemon.socket()));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto welcome, rank.Hello("tune"));
  EXPECT_EQ(welcome.body.welcome().gpus(0).pool().free_bytes(), MiB(16).size());
  EXPECT_THAT(rank.Lease(wire::Lease::GPU, MiB(20)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("of which 20 MiB are reserved for others")));
  EXPECT_THAT(rank.Lease(wire::Lease::GPU, MiB(16)), IsOk());
}

TEST(DaemonStart, APolicyThatReservesTooMuchIsRefusedInOneLine) {
  ExpectPolicyIsRefused(
      R"({"sluice_policy": 1, "limits": [], "drained": null,
          "reservations": [{"gpu": 0, "uid": 1, "bytes": 68719476736,
                            "by": "", "at_unix_s": 1}]})",
      {"error: the policy reserves 64 GiB of GPU 0, which has 36 MiB: take it "
       "out"});
}

}  // namespace
}  // namespace sluice::testing
