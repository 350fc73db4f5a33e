// The command line of `sluiced`.
//
// Thread safety: pure, but ConfigOf reads a file.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "daemon/core/policy.h"
#include "daemon/policy_file.h"
#include "proto/base/clock.h"

namespace sluice::daemon {

inline constexpr char kRuntimeDir[] = "/run/sluice";

struct Arguments {
  std::string config;
  std::string runtime_dir = kRuntimeDir;
  std::string session_dir;  // for session.sock and sim/; empty: runtime_dir
  std::string driver;       // empty: the configured one
  // The daemon ends when no rank has been attached for this many seconds;
  // unset: it never ends for this reason.
  std::optional<int> end_after_idle_s;
  bool check = false;
  bool check_state = false;

  const std::string& SessionDir() const {
    return session_dir.empty() ? runtime_dir : session_dir;
  }
};

absl::StatusOr<Config> ConfigOf(const Arguments& arguments);

// Only the node's own daemon uses the system's folder: other daemons, such as
// those of tests, must not share it.
PolicyFile PolicyFileOf(const Config& config, const Arguments& arguments);

Clocks ClocksNow(const Clock& clock);

}  // namespace sluice::daemon
