// Ranks of a daemon that dies, and a check that the next daemon serves them.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/kept_daemon.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {

inline RawClient Connected(const KeptDaemon& daemon) {
  auto client = RawClient::Connect(daemon.socket());
  SLUICE_CHECK_OK(client.status());
  return *std::move(client);
}

inline RawClient Attached(const KeptDaemon& daemon,
                          const std::string& job = "job") {
  RawClient client = Connected(daemon);
  EXPECT_THAT(client.Hello(job), IsOk());
  return client;
}

// Attaches a rank that leases 4 MiB of GPU 0.
inline RawClient AttachedWithMemory(const KeptDaemon& daemon,
                                    const std::string& job = "job") {
  RawClient client = Attached(daemon, job);
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(4)), IsOk());
  return client;
}

// Expects that the rank's session and its 4 MiB survived.
inline void ExpectKept(const KeptDaemon& daemon, RawClient& rank) {
  const auto event = rank.NextEvent(absl::Seconds(20));
  ASSERT_THAT(event, IsOk()) << daemon.Log();
  EXPECT_TRUE(event->has_taken_over());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto pool, GpuPool(daemon.socket(), 0));
  EXPECT_EQ(pool.leased_bytes(), MiB(4).size());
}

}  // namespace sluice::testing
