// Fixture that opens a session through the C ABI, with a scripted daemon.
#pragma once

#include <string>

#include "client/sluice.h"
#include "gtest/gtest.h"
#include "tests/client/scripted_daemon.h"

namespace sluice::client {

class CAbiTest : public ::testing::Test {
 protected:
  explicit CAbiTest(bool takes_changes = false) {
    socket_ = daemon_.options().socket;
    sluice_session_options options = {.size = sizeof(options)};
    options.socket = socket_.c_str();
    options.takes_changes = takes_changes;
    EXPECT_EQ(sluice_session_open(&options, &session_), SLUICE_OK)
        << sluice_last_error();
    daemon_.limits().slots[0].limit_bytes[kH2d] = 1 << 30;
    daemon_.limits().slots[0].limit_bytes[kD2h] = 1 << 30;
  }
  ~CAbiTest() override { sluice_session_close(session_); }

  // Waits until the client has received all events sent so far: the reply to a
  // lease follows them.
  void AwaitEvents() {
    sluice_region* region;
    ASSERT_EQ(sluice_region_lease(session_, SLUICE_HOST, 1, &region), 0);
    sluice_region_free(region);
  }

  ScriptedDaemon daemon_;
  std::string socket_;
  sluice_session* session_ = nullptr;
};

}  // namespace sluice::client
