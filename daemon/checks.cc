#include "daemon/checks.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "daemon/check_state.h"
#include "daemon/core/core.h"
#include "daemon/metrics/http_server.h"
#include "daemon/node.h"
#include "daemon/runtime/runtime_dir.h"
#include "daemon/worker_user.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// Everything that a start would refuse but the ports and the sockets, which
// may be the running daemon's.
absl::Status CheckConfig(const Arguments& arguments, const Config& config) {
  SLUICE_RETURN_IF_ERROR(CheckHttp({.listen = config.http_listen.value_or(""),
                                    .socket = {},
                                    .socket_group = config.http_socket_group}));
  const Clocks now = ClocksNow(MonotonicClock());
  const PolicyFile file = PolicyFileOf(config, arguments);
  // Before what takes long.
  SLUICE_RETURN_IF_ERROR(file.Read(now, file.owner()).status());
  SLUICE_RETURN_IF_ERROR(FindWorkerUser(config.worker_user).status());
  SLUICE_ASSIGN_OR_RETURN(const OwnedFolder folder, TemporaryRuntimeDir());
  SLUICE_ASSIGN_OR_RETURN(const Node node, OpenNode(config, folder.path()));
  SLUICE_RETURN_IF_ERROR(
      UsablePolicy(file, file.owner(), node.config, now).status());
  const std::string good =
      fmt::format("{}: good: {}\n",
                  arguments.config.empty() ? "defaults" : arguments.config,
                  node.description);
  std::fputs(good.c_str(), stdout);  // fmt::print throws on a full disk
  for (const std::string& warning : node.config.warnings) {
    fmt::print(stderr, "warning: {}\n", warning);
  }
  return absl::OkStatus();
}

// Whether this binary, with this configuration, would take over from the daemon
// that runs.
absl::Status CheckRunning(const Arguments& arguments, const Config& config) {
  SLUICE_ASSIGN_OR_RETURN(const OwnedFolder folder, TemporaryRuntimeDir());
  SLUICE_ASSIGN_OR_RETURN(const Node node, OpenNode(config, folder.path()));
  const auto state =
      CheckState(arguments.runtime_dir + "/admin.sock", node.config);
  if (!state.ok()) {
    return Annotate(state.status(), "it would not be taken over");
  }
  // An administrator's own user need not be the daemon's.
  const PolicyFile file = PolicyFileOf(config, arguments);
  const auto policy = UsablePolicy(file, file.owner(), node.config,
                                   ClocksNow(MonotonicClock()));
  const bool unread = absl::IsPermissionDenied(policy.status());
  if (!policy.ok() && !unread) {
    return Annotate(policy.status(), "it would not take over");
  }
  const std::string good = fmt::format(
      "good: {}{}\n", *state,
      unread ? ", but for the policy, which this user may not read" : "");
  std::fputs(good.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Policy> UsablePolicy(const PolicyFile& file, uid_t daemon,
                                    const NodeConfig& node, const Clocks& now) {
  SLUICE_ASSIGN_OR_RETURN(Policy policy, file.Read(now, daemon));
  SLUICE_RETURN_IF_ERROR(
      Core(node, now.monotonic).SetPolicy(policy, now.monotonic));
  return policy;
}

absl::Status Check(const Arguments& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const Config config, ConfigOf(arguments));
  if (arguments.check) {
    SLUICE_RETURN_IF_ERROR(CheckConfig(arguments, config));
  }
  return arguments.check_state ? CheckRunning(arguments, config)
                               : absl::OkStatus();
}

}  // namespace sluice::daemon
