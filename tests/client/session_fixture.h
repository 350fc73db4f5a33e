// Fixture for a session of the real client with a scripted daemon.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "client/session/session.h"
#include "gtest/gtest.h"
#include "tests/client/scripted_daemon.h"
#include "tests/support/status_matchers.h"

namespace sluice::client {

class SessionTest : public ::testing::Test {
 protected:
  void Open() {
    SLUICE_ASSERT_OK_AND_ASSIGN(session_, Session::Open(daemon_.options()));
  }
  static bool Soon(const std::function<bool()>& claim) {
    // Stops calling `claim` once it is true, as `claim` may have a side effect.
    for (int i = 0; i < 5000; ++i) {
      if (claim()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  ScriptedDaemon daemon_;
  std::unique_ptr<Session> session_;
};

}  // namespace sluice::client
