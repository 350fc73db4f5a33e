// Daemons of this version and of the next, one after the other, under ranks.
#include <cstdint>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/kept_daemon.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kNewest = wire::Protocols().newest;

class Versions : public ::testing::Test {
 protected:
  RawClient Connected() {
    auto client = RawClient::Connect(daemon_.socket());
    SLUICE_CHECK_OK(client.status());
    return *std::move(client);
  }
  RawClient Attached(const std::string& job = "job") {
    RawClient client = Connected();
    EXPECT_THAT(client.Hello(job), IsOk());
    return client;
  }
  // The protocol that a client takes which speaks `oldest` to `newest`.
  absl::StatusOr<uint32_t> Agreed(uint32_t oldest, uint32_t newest) {
    wire::Request request;
    request.mutable_hello()->set_observer(true);
    request.mutable_hello()->set_oldest_protocol(oldest);
    request.mutable_hello()->set_protocol(newest);
    RawClient client = Connected();
    const auto reply = client.Call(request);
    if (!reply.ok()) return reply.status();
    return reply->body.welcome().protocol();
  }
  void Restart(const std::string& program) {
    daemon_.Kill();
    daemon_.Use(program);
    daemon_.Start();
  }
  KeptDaemon daemon_;
};

TEST_F(Versions, AClientOfThisOneTakesThisProtocolFromTheNextDaemon) {
  daemon_.Use("sluiced-next");
  daemon_.Start();
  for (const uint32_t newest : {kNewest, kNewest + 1}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const uint32_t agreed, Agreed(1, newest));
    EXPECT_EQ(agreed, newest);
  }
  EXPECT_THAT(Agreed(kNewest + 2, kNewest + 2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("upgrade the daemon")));
}

// The same leases and sessions, to and fro.
TEST_F(Versions, RanksGoOnUnderTheNextOneAndBack) {
  daemon_.Start();
  RawClient rank = Attached();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                              rank.Lease(wire::Lease::GPU, MiB(4)));
  for (const char* program : {"sluiced-next", "sluiced", "sluiced-next"}) {
    SCOPED_TRACE(program);
    Restart(program);
    const auto event = rank.NextEvent(absl::Seconds(20));
    ASSERT_THAT(event, IsOk());
    EXPECT_TRUE(event->has_taken_over());
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto pool, GpuPool(daemon_.socket(), 0));
    EXPECT_EQ(pool.leased_bytes(), MiB(4).size());
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto more,
                                rank.Lease(wire::Lease::GPU, KiB(64)));
    EXPECT_THAT(rank.Free(more.body.granted().lease_id()), IsOk());
  }
  EXPECT_THAT(rank.Free(lease.body.granted().lease_id()), IsOk());
}

}  // namespace
}  // namespace sluice::testing
