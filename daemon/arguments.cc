#include "daemon/arguments.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <vector>

#include "absl/time/clock.h"
#include "daemon/core/core.h"
#include "proto/base/status.h"

namespace sluice::daemon {
absl::StatusOr<Config> ConfigOf(const Arguments& arguments) {
  Config config;
  if (!arguments.config.empty()) {
    SLUICE_ASSIGN_OR_RETURN(config, ReadConfig(arguments.config));
  }
  if (!arguments.driver.empty()) {
    SLUICE_ASSIGN_OR_RETURN(config.driver, ParseDriver(arguments.driver));
  }
  return config;
}

PolicyFile PolicyFileOf(const Config& config, const Arguments& arguments) {
  return PolicyFile(config.policy_folder.value_or(
      arguments.runtime_dir == kRuntimeDir ? "/var/lib/sluice"
                                           : arguments.runtime_dir));
}

Clocks ClocksNow(const Clock& clock) { return {clock.Now(), absl::Now()}; }

absl::StatusOr<Policy> UsablePolicy(const PolicyFile& file, uid_t daemon,
                                    const NodeConfig& node, const Clocks& now) {
  SLUICE_ASSIGN_OR_RETURN(Policy policy, file.Read(now, daemon));
  SLUICE_RETURN_IF_ERROR(
      Core(node, now.monotonic).SetPolicy(policy, now.monotonic));
  return policy;
}

absl::StatusOr<WorkerUser> FindWorkerUser(const std::string& name) {
  if (name.empty()) return WorkerUser{};
  std::vector<char> buffer(1 << 16);
  passwd entry = {};
  passwd* found = nullptr;
  getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    return absl::NotFoundError(
        fmt::format("[worker] user '{}' does not exist: create that user, or "
                    "name another",
                    name));
  }
  if (geteuid() == found->pw_uid) return WorkerUser{};
  if (geteuid() != 0) {
    return absl::PermissionDeniedError(fmt::format(
        "[worker] user '{}': only a daemon that runs as root may run its "
        "workers as another user: remove the key",
        name));
  }
  return WorkerUser{found->pw_uid, found->pw_gid};
}

}  // namespace sluice::daemon
