// The command line of `sluiced`, and what it and the configuration name.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "daemon/core/node/types.h"
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
  // The daemon ends when no rank has been attached for this many seconds (after
  // its start at least a minute). Unset: it never ends for this reason.
  std::optional<int> end_after_idle_s;
  bool check = false;
  bool check_state = false;

  const std::string& SessionDir() const {
    return session_dir.empty() ? runtime_dir : session_dir;
  }
};

absl::StatusOr<Config> ConfigOf(const Arguments& arguments);

// Returns the configured policy file. Without a configured one, only the node's
// own daemon uses the system's folder: others, such as a test's, must not.
PolicyFile PolicyFileOf(const Config& config, const Arguments& arguments);

Clocks ClocksNow(const Clock& clock);

// Returns the policy that administrators set, if a daemon of user `daemon` on
// this node can use it; else the errors of PolicyFile::Read and
// Core::SetPolicy.
absl::StatusOr<Policy> UsablePolicy(const PolicyFile& file, uid_t daemon,
                                    const NodeConfig& node, const Clocks& now);

struct WorkerUser {
  std::optional<uint32_t> uid, gid;  // unset: the daemon's own
};

// Looks up [worker] user; empty: no user. NotFound: there is no such user.
// PermissionDenied: it is another user, and the daemon does not run as root.
absl::StatusOr<WorkerUser> FindWorkerUser(const std::string& name);

}  // namespace sluice::daemon
