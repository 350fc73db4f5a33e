#include "daemon/serve.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/checks.h"
#include "daemon/frozen/frozen_daemon.h"
#include "daemon/metrics/http_server.h"
#include "daemon/metrics/snapshot_json.h"
#include "daemon/node.h"
#include "daemon/runtime/runtime_dir.h"
#include "daemon/runtime/this_process.h"
#include "daemon/service/admin/admin_server.h"
#include "daemon/service/grant_pages.h"
#include "daemon/service/log/log.h"
#include "daemon/service/service.h"
#include "daemon/service/takeover/may_take_over.h"
#include "daemon/state/death_record.h"
#include "daemon/store/handed_listener.h"
#include "daemon/worker_user.h"
#include "proto/base/clock.h"
#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// How long an end waits for what runs beside the loop.
constexpr absl::Duration kEndingPatience = absl::Milliseconds(300);

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
    http = HttpServer::Start(options);
  }
  if (absl::IsUnimplemented(http.status()) && !asked &&
      options.socket_group.empty()) {
    if (!options.listen.empty()) {
      WriteLog(LogLevel::kWarning,
               "no metrics: " + std::string(http.status().message()));
    }
    return nullptr;
  }
  if (!http.ok() && takes_over) {
    WriteLog(LogLevel::kError,
             fmt::format("no metrics until the next start: {}",
                         std::string(http.status().message())));
    return nullptr;
  }
  return http;
}

// Where journald reads stderr, so that its entries have fields.
void LogToJournal() {
  if (!JournalSocket::ReadsStderr(std::getenv("JOURNAL_STREAM"))) return;
  auto journal = JournalSocket::Make();
  if (journal.ok()) return UseJournal(*std::move(journal));
  WriteLog(LogLevel::kWarning, std::string(journal.status().message()));
}

// The same of the daemon that asks itself, by the program as it is then.
std::vector<std::string> CheckOf(const Arguments& arguments) {
  std::vector<std::string> words = {ThisProgram(), "--check-config",
                                    "--check-state", "--runtime-dir",
                                    arguments.runtime_dir};
  const auto add = [&words](const char* flag, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {flag, value});
  };
  add("--config", arguments.config);
  add("--driver", arguments.driver);
  return words;
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

// Each extent that may be is kept for the next daemon, beside what ranks have
// (Service::MayBeKept), and some processes whose sessions ended. One user may
// have half of them, as without, or what the configuration says.
Share KeptExtents(Share extents, const Config& config, const NodeConfig& node,
                  const Starter& starter) {
  const int64_t capacity = Handover::CapacityOf(starter);
  const int64_t ended = std::min<int64_t>(512, capacity / 16);
  const int64_t ranks = std::min<int64_t>(
      Handover::kOfRank * kGrantSlots + Handover::kOwn + ended, capacity / 2);
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

// What is left of `open_files` for clients: all that a keeper holds is held
// here too, for the next one where it dies.
int64_t BesideKept(const Starter& starter, int64_t open_files) {
  if (!starter.keeper) return open_files;
  return open_files - std::min(Handover::CapacityOf(starter), open_files / 2);
}

// Without what is only known when they start: who keeps descriptors, and when.
absl::StatusOr<ServiceOptions> OptionsOf(const Arguments& arguments,
                                         const Config& config, Node& node,
                                         const Clock& clock) {
  ServiceOptions options;
  SLUICE_ASSIGN_OR_RETURN(const WorkerUser worker_user,
                          FindWorkerUser(config.worker_user));
  if (config.policy_folder != "") {
    options.keep_policy = [file = PolicyFileOf(config, arguments),
                           &clock](const Policy& now) {
      return file.Write(now, ClocksNow(clock));
    };
  }
  options.socket = arguments.runtime_dir + "/session.sock";
  options.node = node.config;
  options.peers = PeerRules::OfThisProcess(config.cgroups);
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
  options.render = SnapshotJson;
  return options;
}

// Unlike any earlier daemon's: later ones start later, also where somebody has
// set the clock back.
uint64_t GenerationBehind(const Starter& starter) {
  const auto now = static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
  const auto kept = starter.stored.find(Handover::kLimits);
  if (kept == starter.stored.end()) return now;
  return std::max(now, GrantPages::GenerationOf(kept->second) + 1);
}

// What there is for clients, beside what `starter` keeps.
void ShareOut(const Config& config, Starter starter, ServiceOptions& options) {
  const int64_t open_files = BesideKept(starter, RaiseDescriptorLimit());
  options.shares = SharesOf(config.quota, open_files);
  options.extents = KeptExtents(ExtentsOf(config.quota, open_files), config,
                                options.node, starter);
  options.node.extent_limits.each_of_open_files =
      config.quota.extents.value_or(options.extents.all) >= options.extents.all;
  options.node.generation = GenerationBehind(starter);
  options.starter = std::move(starter);
}

// Why a start goes no further than to keep what was left; empty: it goes on.
std::string DiesTooOften(int freeze_after, const Starter& starter,
                         const DeathRecord& deaths) {
  const int died = deaths.Recent(MonotonicClock().Now());
  if (freeze_after == 0 || died < freeze_after ||
      !starter.stored.contains(Handover::kState)) {
    return "";
  }
  const std::string last = deaths.why();
  return fmt::format(
      "{} daemons died within {} s{}", died,
      absl::ToInt64Seconds(DeathRecord::kWindow),
      last.empty() ? ""
                   : fmt::format(", and the last that said why: {}", last));
}

// Beside what waits for sessions, which an idle daemon leaves too.
bool IsLeftRanks(const Starter& starter) {
  return std::ranges::any_of(starter.stored, [](const auto& each) {
    return each.first != Handover::kListener;
  });
}

// Until whoever started the process ends it.
absl::Status Freeze(const Arguments& arguments, const std::string& why,
                    Starter starter, UniqueFd listener, DeathRecord& deaths,
                    HttpServer* http) {
  deaths.EndInOrder();
  WriteLog(LogLevel::kError, std::string(Frozen(why).message()));
  RaiseDescriptorLimit();
  const MonotonicClock clock;
  SLUICE_ASSIGN_OR_RETURN(
      const auto daemon,
      FrozenDaemon::Start({.why = why,
                           .runtime_dir = arguments.runtime_dir,
                           .starter = std::move(starter),
                           .listener = std::move(listener),
                           .clock = &clock}));
  if (http != nullptr) {
    http->Serve({.snapshot = [why] { return Frozen(why); },
                 .alive = [] { return absl::OkStatus(); },
                 .frozen = why});
  }
  fmt::print("sluiced: frozen: {}\n", why);
  std::fflush(stdout);
  OwnedFolder sim;
  if (daemon->Run()) sim.Own(arguments.runtime_dir + "/sim");
  deaths.Forget();
  return absl::OkStatus();
}

absl::Status Serve(const Arguments& arguments, Starter starter,
                   DeathRecord& deaths) {
  const auto read = ConfigOf(arguments);
  const Config config = read.value_or(Config());
  const std::string dies = DiesTooOften(config.freeze_after, starter, deaths);
  if (dies.empty()) SLUICE_RETURN_IF_ERROR(read.status());
  SetLogLevel(config.log_level);
  LogToJournal();
  std::optional<LogThread> log(std::in_place);
  // First, so that it goes last: what the rest leaves is gone by then.
  SLUICE_ASSIGN_OR_RETURN(RuntimeLock lock,
                          RuntimeLock::Take(arguments.runtime_dir));
  auto handed = TakeHandedListener(std::exchange(starter.sockets, {}),
                                   arguments.runtime_dir + "/session.sock");
  if (dies.empty()) SLUICE_RETURN_IF_ERROR(handed.status());
  UniqueFd listener = handed.ok() ? *std::move(handed) : UniqueFd();
  // Sessions go before whoever watches: what these need cannot end a takeover.
  const bool takes_over = IsLeftRanks(starter);
  // Before what takes long, so that /readyz says that it starts.
  SLUICE_ASSIGN_OR_RETURN(auto http,
                          StartHttp(config, arguments.runtime_dir, takes_over));
  if (!dies.empty()) {
    return Freeze(arguments, dies, std::move(starter), std::move(listener),
                  deaths, http.get());
  }
  SLUICE_ASSIGN_OR_RETURN(Node node, OpenNode(config, arguments.runtime_dir));
  // Until it serves: memory that was left is of this simulated node, which
  // stays for the next one where this start fails.
  if (takes_over) node.own_sim.Own("");
  WriteLog(LogLevel::kInfo, node.description);
  if (const auto may = MayTakeOver(starter.stored, node.config); !may.ok()) {
    return Freeze(arguments, std::string(may.message()), std::move(starter),
                  std::move(listener), deaths, http.get());
  }

  MonotonicClock clock;
  auto policy = UsablePolicy(PolicyFileOf(config, arguments), geteuid(),
                             node.config, ClocksNow(clock));
  if (!policy.ok() && starter.stored.contains(Handover::kState)) {
    return Freeze(arguments, std::string(policy.status().message()),
                  std::move(starter), std::move(listener), deaths, http.get());
  }
  SLUICE_RETURN_IF_ERROR(policy.status());
  SLUICE_ASSIGN_OR_RETURN(ServiceOptions options,
                          OptionsOf(arguments, config, node, clock));
  options.policy = *std::move(policy);
  ShareOut(config, std::move(starter), options);
  options.listener = std::move(listener);
  options.deaths = deaths.fd();
  options.check = CheckOf(arguments);
  SLUICE_ASSIGN_OR_RETURN(const auto service,
                          Service::Start(std::move(options)));
  if (takes_over) service->AnswerWhoWaited();
  SLUICE_ASSIGN_OR_RETURN(
      auto admin,
      AdminServer::Start(
          arguments.runtime_dir + "/admin.sock", service.get(), SnapshotJson,
          takes_over ? NoAdminSocket::kIsTriedAgain : NoAdminSocket::kRefuses));
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
  deaths.EndInOrder();
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

}  // namespace

absl::Status ServeOrSayWhy(const Arguments& arguments, Starter starter) {
  UniqueFd left;
  if (const auto kept = starter.stored.find(Handover::kDeaths);
      kept != starter.stored.end()) {
    SLUICE_ASSIGN_OR_RETURN(left, kept->second.Duplicate());
  }
  SLUICE_ASSIGN_OR_RETURN(DeathRecord deaths,
                          DeathRecord::Open(std::move(left)));
  deaths.Begin(MonotonicClock().Now());
  const absl::Status status = Serve(arguments, std::move(starter), deaths);
  if (!status.ok()) deaths.SayWhy(std::string(status.message()));
  return status;
}

}  // namespace sluice::daemon
