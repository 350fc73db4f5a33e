// The command line of `sluiced`, and what it and the configuration name: the
// policy file and the user of plan workers.
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

// Returns the policy file in the configured folder. The default is
// /var/lib/sluice if the runtime directory is /run/sluice, else the runtime
// directory, so that a test's daemon does not use the node's policy.
PolicyFile PolicyFileOf(const Config& config, const Arguments& arguments);

Clocks ClocksNow(const Clock& clock);

// Returns the policy that administrators set, if a daemon that runs as user
// `daemon` can use it on this node; else the errors of PolicyFile::Read and
// Core::SetPolicy.
absl::StatusOr<Policy> UsablePolicy(const PolicyFile& file, uid_t daemon,
                                    const NodeConfig& node, const Clocks& now);

struct WorkerUser {
  std::optional<uint32_t> uid, gid;  // unset: the daemon's own
};

// Looks up the user `name` of [worker]. Returns no ids if `name` is empty or
// the daemon's own user. NotFound: there is no such user. PermissionDenied:
// `name` is another user, and the daemon is not root.
absl::StatusOr<WorkerUser> FindWorkerUser(const std::string& name);

}  // namespace sluice::daemon
