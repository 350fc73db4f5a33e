// sluiced: one per node. Wiring, signals, configuration.
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "daemon/check_state.h"
#include "daemon/config.h"
#include "daemon/core/core.h"
#include "daemon/metrics/http_server.h"
#include "daemon/metrics/snapshot_json.h"
#include "daemon/node.h"
#include "daemon/policy_file.h"
#include "daemon/runtime/runtime_dir.h"
#include "daemon/runtime/this_process.h"
#include "daemon/service/admin_server.h"
#include "daemon/service/log/log.h"
#include "daemon/service/service.h"
#include "daemon/store/starter.h"
#include "daemon/worker_user.h"
#include "proto/base/clock.h"
#include "proto/base/grant_page.h"
#include "proto/base/status.h"
#include "proto/cli/cli.h"

namespace sluice::daemon {
namespace {

// How long an end waits for what runs beside the loop.
constexpr absl::Duration kEndingPatience = absl::Milliseconds(300);

constexpr char kRuntimeDir[] = "/run/sluice";
constexpr char kPolicyFolder[] = "/var/lib/sluice";

struct Arguments {
  std::string config;
  std::string runtime_dir = kRuntimeDir;
  std::string driver;  // empty: the configuration's
  bool check = false;
  bool check_state = false;
};

constexpr char kExamples[] = R"(Examples:
  sluiced                                     /run/sluice, every default
  sluiced --config sluiced.toml --runtime-dir /tmp/s
  sluiced --config sluiced.toml --check-config
  sluiced --config sluiced.toml --check-state
  sluiced --driver sim --runtime-dir /tmp/s   simulated GPUs

SIGTERM and SIGINT end it; SIGHUP is only noted: what the file says holds from
the next start. Exit status: 0 ended by a signal; 2 bad input; 1 a fault.)";

// Resident memory stays small: few arenas, and what was freed goes back.
void TuneMemory() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
}

// Blocked in every thread; the loop's signalfd takes them.
void BlockSignals() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : kEndingSignals) sigaddset(&ending, signal);
  for (const int signal : kNotedSignals) sigaddset(&ending, signal);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

// Null: built without (the wheel's daemon). The default port may be another
// program's: then only the unix socket is served, and the log says so; a port
// or a group that was asked for must be had, but where ranks of an earlier
// daemon wait to be served (`takes_over`) somebody may have taken the port
// meanwhile.
absl::StatusOr<std::unique_ptr<HttpServer>> StartHttp(
    const Config& config, const std::string& runtime_dir, bool takes_over) {
  HttpOptions options;
  options.listen = config.http_listen.value_or(kDefaultHttpListen);
  options.socket = runtime_dir + "/http.sock";
  options.socket_group = config.http_socket_group;
  auto http = HttpServer::Start(options);
  const bool asked = config.http_listen && !options.listen.empty();
  if (absl::IsAlreadyExists(http.status()) && (!asked || takes_over)) {
    WriteLog(LogLevel::kWarning,
             "no metrics on TCP: " + std::string(http.status().message()));
    options.listen.clear();
    return HttpServer::Start(options);
  }
  if (absl::IsUnimplemented(http.status()) && !asked &&
      options.socket_group.empty()) {
    if (!options.listen.empty()) {
      WriteLog(LogLevel::kWarning,
               "no metrics: " + std::string(http.status().message()));
    }
    return nullptr;
  }
  return http;
}

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

// Of the node's own daemon in the system's folder; others, such as those of
// tests, must not share it.
PolicyFile PolicyFileOf(const Config& config, const Arguments& arguments) {
  return PolicyFile(config.policy_folder.value_or(
      arguments.runtime_dir == kRuntimeDir ? kPolicyFolder
                                           : arguments.runtime_dir));
}

Clocks ClocksNow(const Clock& clock) { return {clock.Now(), absl::Now()}; }

// Everything that a start would refuse but the ports and the sockets, which
// may be the running daemon's.
absl::Status CheckConfig(const Arguments& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const Config config, ConfigOf(arguments));
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
absl::Status CheckRunning(const Arguments& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const Config config, ConfigOf(arguments));
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

// So many extents are all of the pools.
int64_t ExtentsOfPools(const NodeConfig& node) {
  int64_t all = 0;
  for (const GpuConfig& gpu : node.gpus) all += gpu.pool / node.extent.gpu;
  for (const HostConfig& host : node.hosts) {
    all += host.pool / node.extent.host;
  }
  return all;
}

// Each extent that may be is kept for the next daemon, beside what ranks have.
// One user may have half of them, as without, or what the configuration says.
Share KeptExtents(Share extents, const Config& config, const NodeConfig& node,
                  const Starter& starter) {
  const int64_t capacity = Handover::CapacityOf(starter);
  const int64_t ranks = std::min<int64_t>(3 * kGrantSlots + 8, capacity / 2);
  const int64_t most = capacity - ranks;
  if (capacity == 0 || most >= extents.all) return extents;
  // Leases of odd sizes make more of them than the pools have whole ones.
  if (most < 2 * ExtentsOfPools(node)) {
    WriteLog(
        LogLevel::kWarning,
        fmt::format("there may be {} extents of memory instead of {}, since {} "
                    "descriptors are kept for the next daemon: raise "
                    "FileDescriptorStoreMax= of the unit, or --max-descriptors "
                    "of sluiced-keeper, or [pools] extent_bytes",
                    most, extents.all, capacity));
  }
  const int64_t each = config.quota.extents.value_or(most / 2);
  return {std::clamp<int64_t>(each, 1, most), most};
}

absl::Status Serve(const Arguments& arguments, Starter starter) {
  SLUICE_ASSIGN_OR_RETURN(const Config config, ConfigOf(arguments));
  SLUICE_ASSIGN_OR_RETURN(const WorkerUser worker_user,
                          FindWorkerUser(config.worker_user));
  SetLogLevel(config.log_level);
  std::optional<LogThread> log(std::in_place);
  // First, so that it goes last: what the rest leaves is gone by then.
  SLUICE_ASSIGN_OR_RETURN(RuntimeLock lock,
                          RuntimeLock::Take(arguments.runtime_dir));
  // Before what takes long, so that /readyz says that it starts.
  SLUICE_ASSIGN_OR_RETURN(auto http, StartHttp(config, arguments.runtime_dir,
                                               !starter.stored.empty()));
  SLUICE_ASSIGN_OR_RETURN(Node node, OpenNode(config, arguments.runtime_dir));
  // Until it serves: memory that was left is of this simulated node, which
  // stays for the next one where this start fails.
  if (!starter.stored.empty()) node.own_sim.Own("");
  WriteLog(LogLevel::kInfo, node.description);

  MonotonicClock clock;
  ServiceOptions options;
  const PolicyFile policy = PolicyFileOf(config, arguments);
  SLUICE_ASSIGN_OR_RETURN(options.policy, policy.Read(ClocksNow(clock)));
  if (config.policy_folder != "") {
    options.keep_policy = [&](const Policy& now) {
      return policy.Write(now, ClocksNow(clock));
    };
  }
  options.socket = arguments.runtime_dir + "/session.sock";
  options.node = node.config;
  const int64_t open_files = RaiseDescriptorLimit();
  options.shares = SharesOf(config.quota, open_files);
  options.extents = KeptExtents(ExtentsOf(config.quota, open_files), config,
                                options.node, starter);
  options.node.extent_limits.each_of_open_files =
      config.quota.extents.value_or(options.extents.all) >= options.extents.all;
  options.peers = PeerRules::OfThisProcess(config.cgroups);
  // Unlike any earlier daemon's: later ones start later.
  options.node.generation =
      static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
  options.driver = node.driver.get();
  options.sim_directory = node.sim_directory;
  if (node.sim_clocks) {
    options.sim_clocks =
        std::make_shared<const UniqueFd>(std::move(node.sim_clocks));
  }
  if (config.gpus_are_shown) {
    SLUICE_ASSIGN_OR_RETURN(options.gpus, GpuAccess::Make(node.gpu_nodes));
  }
  options.worker = {.path = Sibling("sluice-worker"),
                    .memory = config.worker_memory,
                    .uid = worker_user.uid,
                    .gid = worker_user.gid};
  options.plan_cache = arguments.runtime_dir + "/plan_cache";
  options.clock = &clock;
  options.starter = std::move(starter);
  options.render = SnapshotJson;
  SLUICE_ASSIGN_OR_RETURN(const auto service,
                          Service::Start(std::move(options)));
  SLUICE_ASSIGN_OR_RETURN(
      auto admin, AdminServer::Start(arguments.runtime_dir + "/admin.sock",
                                     service.get(), SnapshotJson));
  if (http) {
    http->Serve({.snapshot = [&service] { return service->Read(); },
                 .alive = [&service] { return service->Answers(); }});
  }
  const bool on_tcp = http && !http->address().empty();
  fmt::print("sluiced: ready: driver={} gpus={} socket={} http={}\n",
             node.config.driver, node.config.gpus.size(),
             arguments.runtime_dir + "/session.sock",
             on_tcp ? http->address() : "off");
  std::fflush(stdout);
  service->SayReady();
  // It serves: from here on an end is an end, whoever still uses the node.
  if (!node.sim_directory.empty()) {
    node.own_sim.Own(node.sim_directory);
  }
  service->Run();
  if (service->hands_over()) node.own_sim.Own("");
  http.reset();
  admin.reset();
  if (service->Finish(kEndingPatience)) {
    WriteLog(LogLevel::kInfo, "stopped");
    return absl::OkStatus();
  }
  // A call that does not come back holds what would be destroyed. The kernel
  // takes it all; only the files are ours to remove.
  WriteLog(LogLevel::kWarning,
           "stopped, though a device call or a profile was not finished");
  service->RemoveSocket();
  node.own_sim.Remove();
  lock.Remove();
  log.reset();
  _exit(0);
}

int Fail(const absl::Status& status) {
  fmt::print(stderr, "error: {}\n", std::string(status.message()));
  const bool bad_input =
      absl::IsInvalidArgument(status) || absl::IsAlreadyExists(status) ||
      absl::IsUnimplemented(status) || absl::IsNotFound(status) ||
      absl::IsPermissionDenied(status);
  return bad_input ? 2 : 1;
}

int Main(int argc, char** argv) {
  TuneMemory();
  BlockSignals();
  Arguments arguments;
  CLI::App app(
      "sluiced: the node's GPU memory service. Owns pinned host memory and "
      "GPU memory, and leases them to training ranks.");
  app.add_option("--config", arguments.config,
                 "TOML file; everything has a default");
  app.add_option("--runtime-dir", arguments.runtime_dir,
                 "where the sockets are")
      ->capture_default_str();
  app.add_option("--driver", arguments.driver,
                 "auto, cuda or sim; wins over [device] driver");
  app.add_flag("--check-config", arguments.check,
               "say whether a start would work, and end");
  app.add_flag("--check-state", arguments.check_state,
               "say whether a start would take over what the running daemon "
               "knows, and end");
  app.footer(kExamples);
  app.name("sluiced");
  const auto done = cli::Parse(app, {argv + 1, argv + argc});
  if (!done.ok()) return Fail(done.status());
  if (*done) return **done;
  if (arguments.check) {
    const absl::Status checked = CheckConfig(arguments);
    return checked.ok() ? 0 : Fail(checked);
  }
  if (arguments.check_state) {
    const absl::Status checked = CheckRunning(arguments);
    return checked.ok() ? 0 : Fail(checked);
  }
  auto starter = TakeFromStarter();  // there is no thread yet
  if (!starter.ok()) return Fail(starter.status());
  const absl::Status status = Serve(arguments, *std::move(starter));
  return status.ok() ? 0 : Fail(status);
}

}  // namespace
}  // namespace sluice::daemon

int main(int argc, char** argv) { return sluice::daemon::Main(argc, argv); }
