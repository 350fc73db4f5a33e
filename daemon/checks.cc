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
  SLUICE_ASSIGN_OR_RETURN(const Policy policy,
                          PolicyFileOf(config, arguments).Read(now));
  SLUICE_RETURN_IF_ERROR(FindWorkerUser(config.worker_user).status());
  SLUICE_ASSIGN_OR_RETURN(const OwnedFolder folder, TemporaryRuntimeDir());
  SLUICE_ASSIGN_OR_RETURN(const Node node, OpenNode(config, folder.path()));
  SLUICE_RETURN_IF_ERROR(
      Core(node.config, now.monotonic).SetPolicy(policy, now.monotonic));
  fmt::print("{}: good: {}\n",
             arguments.config.empty() ? "defaults" : arguments.config,
             node.description);
  for (const std::string& warning : node.config.warnings) {
    fmt::print(stderr, "warning: {}\n", warning);
  }
  return absl::OkStatus();
}

// Of the daemon that runs, by this binary with this configuration.
absl::Status CheckRunning(const Arguments& arguments, const Config& config) {
  SLUICE_ASSIGN_OR_RETURN(const OwnedFolder folder, TemporaryRuntimeDir());
  SLUICE_ASSIGN_OR_RETURN(const Node node, OpenNode(config, folder.path()));
  const auto state =
      CheckState(arguments.runtime_dir + "/admin.sock", node.config);
  if (!state.ok()) {
    return Annotate(state.status(), "it would not be taken over");
  }
  fmt::print("good: {}\n", *state);
  return absl::OkStatus();
}

}  // namespace

absl::Status Check(const Arguments& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const Config config, ConfigOf(arguments));
  if (arguments.check) {
    SLUICE_RETURN_IF_ERROR(CheckConfig(arguments, config));
  }
  return arguments.check_state ? CheckRunning(arguments, config)
                               : absl::OkStatus();
}

}  // namespace sluice::daemon
