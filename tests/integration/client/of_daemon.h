// Helpers for tests with a running daemon, which run programs with its socket
// and open sessions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/session/session.h"
#include "proto/base/status.h"
#include "tests/integration/daemon/harness.h"

namespace sluice::testing {

inline ChildResult RunWithSocketOf(const RunningDaemon& daemon,
                                   const std::vector<std::string>& arguments) {
  return Child::Spawn(arguments, {"SLUICE_SOCKET=" + daemon.socket()})->Join();
}

inline std::unique_ptr<client::Session> OpenSession(const RunningDaemon& daemon,
                                                    const std::string& job) {
  auto session = client::Session::Open({.socket = daemon.socket(), .job = job});
  SLUICE_CHECK_OK(session.status());
  return *std::move(session);
}

}  // namespace sluice::testing
