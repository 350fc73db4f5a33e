#include "daemon/serve.h"

#include <fmt/format.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/frozen/frozen_daemon.h"
#include "daemon/metrics/http_server.h"
#include "daemon/metrics/snapshot_json.h"
#include "daemon/node.h"
#include "daemon/runtime/process.h"
#include "daemon/runtime/runtime_dir.h"
#include "daemon/service/admin/admin_server.h"
#include "daemon/service/grant_pages.h"
#include "daemon/service/log/log.h"
#include "daemon/service/service.h"
#include "daemon/service/takeover/handover.h"
#include "daemon/state/death_record.h"
#include "proto/base/clock.h"
#include "proto/base/find.h"
#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr absl::Duration kEndingPatience = absl::Milliseconds(300);

// Returns the command that SIGHUP runs. The command checks whether the program
// that is now at this program's path, maybe a newer version, would start with
// these arguments and take over.
std::vector<std::string> CheckOf(const Arguments& arguments) {
  std::vector<std::string> words = {ThisProgram(), "--check-config",
                                    "--check-state", "--runtime-dir",
                                    arguments.runtime_dir};
  const auto add = [&words](const char* flag, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {flag, value});
  };
  add("--config", arguments.config);
  add("--session-dir", arguments.session_dir);
  add("--driver", arguments.driver);
  return words;
}

int64_t ExtentsOfPools(const NodeConfig& node) {
  int64_t all = 0;
  for (const GpuConfig& gpu : node.gpus) all += gpu.pool / node.extent.gpu;
  for (const HostConfig& host : node.hosts) {
    all += host.pool / node.extent.host;
  }
  return all;
}

// Reduces `extents` to what the store has room for besides the descriptors of
// ranks (Service::MayBeKept) and of processes of ended sessions. One user may
// have half of the extents, as without a store, or the configured number.
Share KeptExtents(Share extents, const Config& config, const NodeConfig& node,
                  const Starter& starter) {
  const int64_t capacity = Handover::CapacityOf(starter);
  const int64_t ended = std::min<int64_t>(512, capacity / 16);
  const int64_t ranks = std::min<int64_t>(
      Handover::kOfRank * kGrantSlots + Handover::kOwn + ended, capacity / 2);
  const int64_t most = capacity - ranks;
  if (capacity == 0 || most >= extents.all) return extents;
  // A lease may end with a smaller extent, so twice as many may be needed.
  if (most < 2 * ExtentsOfPools(node)) {
    WriteLog(
        LogLevel::kWarning,
        fmt::format("there may be {} extents of memory instead of {}, because "
                    "only {} descriptors can be kept for the next daemon: "
                    "raise FileDescriptorStoreMax= of the unit, or "
                    "--max-descriptors of sluiced-keeper, or [pools] "
                    "extent_bytes",
                    most, extents.all, capacity));
  }
  const int64_t each = config.quota.extents.value_or(most / 2);
  return {std::clamp<int64_t>(each, 1, most), most};
}

// Returns this daemon's generation: the time of its start, or the last daemon's
// generation plus 1 if the clock was set back.
uint64_t GenerationBehind(const Starter& starter) {
  const auto now = static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
  const auto* const kept = FindOrNull(starter.stored, Handover::kLimits);
  return kept == nullptr ? now
                         : std::max(now, GrantPages::GenerationOf(*kept) + 1);
}

// Returns all options but `policy`, `listener`, `http` and `deaths`. The clocks
// of simulated links are moved out of `node`. Raises the limit of open files,
// and limits the extents to what the store can keep. Errors as FindWorkerUser;
// NotFound: a GPU's device file is missing.
absl::StatusOr<ServiceOptions> StartOptions(const Arguments& arguments,
                                            const Config& config, Node& node,
                                            Starter starter,
                                            const Clock& clock) {
  ServiceOptions options;
  SLUICE_ASSIGN_OR_RETURN(const WorkerUser worker_user,
                          FindWorkerUser(config.worker_user));
  if (config.policy_folder != "") {
    options.write_policy = [file = PolicyFileOf(config, arguments),
                            &clock](const Policy& now) {
      return file.Write(now, ClocksNow(clock));
    };
  }
  options.socket = arguments.SessionDir() + "/session.sock";
  options.node = node.config;
  options.peers = {config.cgroups, UserMap::OfThisProcess()};
  options.driver = node.driver.get();
  options.sim_directory = node.sim_directory;
  options.find_holders = node.find_holders;
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
  options.clock = &clock;
  options.render = SnapshotJson;
  const int64_t open_files = RaiseDescriptorLimit();
  options.shares = SharesOf(config.quota, open_files);
  options.extents = KeptExtents(ExtentsOf(config.quota, open_files), config,
                                options.node, starter);
  options.node.extent_limits.each_of_open_files =
      config.quota.extents.value_or(options.extents.all) >= options.extents.all;
  options.node.generation = GenerationBehind(starter);
  options.starter = std::move(starter);
  options.check = CheckOf(arguments);
  if (arguments.end_after_idle_s) {
    options.end_after_idle = absl::Seconds(*arguments.end_after_idle_s);
  }
  return options;
}

// While another program has the TCP port, only the unix socket is served. If
// ranks of an earlier daemon wait (`takes_over`), an error is logged and null
// is returned, so that the start goes on without HTTP.
absl::StatusOr<std::unique_ptr<HttpServer>> StartHttp(
    const Config& config, const std::string& runtime_dir,
    const std::map<std::string, UniqueFd>& kept, bool takes_over) {
  HttpOptions options;
  options.listen = config.http_listen.value_or(kDefaultHttpListen);
  options.socket = runtime_dir + "/http.sock";
  options.socket_group = config.http_socket_group;
  if (const auto* const left = FindOrNull(kept, Handover::kHttp)) {
    SLUICE_ASSIGN_OR_RETURN(options.left, left->Duplicate());
  }
  auto http = StartHttpServer(std::move(options));
  if (http.ok() && !(*http)->listener().fault.empty()) {
    WriteLog(LogLevel::kWarning,
             fmt::format("no metrics on TCP: {}; it is tried again every {} s",
                         (*http)->listener().fault,
                         absl::ToInt64Seconds(HttpServer::kListenAgain)));
  }
  if (!http.ok() && takes_over) {
    WriteLog(LogLevel::kError,
             fmt::format("no metrics until the next start: {}",
                         std::string(http.status().message())));
    return nullptr;
  }
  return http;
}

void LogToJournal() {
  if (!JournalSocket::ReadsStderr(std::getenv("JOURNAL_STREAM"))) return;
  auto journal = JournalSocket::Make();
  if (journal.ok()) return UseJournal(*std::move(journal));
  WriteLog(LogLevel::kWarning, std::string(journal.status().message()));
}

// Returns why this daemon must freeze because earlier ones died too often; ""
// if it need not.
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

// An idle daemon leaves only its listening sockets.
bool IsLeftRanks(const Starter& starter) {
  return std::ranges::any_of(starter.stored, [](const auto& each) {
    return each.first != Handover::kListener && each.first != Handover::kHttp;
  });
}

// Ignores errors: the daemon serves even if standard output cannot be written.
void Print(const std::string& line) {
  std::fputs(line.c_str(), stdout);
  if (std::fflush(stdout) == 0) return;
  __fpurge(stdout);
  std::clearerr(stdout);
}

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
                           .session_dir = arguments.SessionDir(),
                           .starter = std::move(starter),
                           .listener = std::move(listener),
                           .clock = &clock}));
  if (http != nullptr) {
    http->Serve({.snapshot = [why] { return Frozen(why); },
                 .alive = [] { return absl::OkStatus(); },
                 .frozen = why});
  }
  Print(fmt::format("sluiced: frozen: {}\n", why));
  OwnedFolder sim;
  if (daemon->Run()) sim.Own(arguments.SessionDir() + "/sim");
  deaths.Forget();
  return absl::OkStatus();
}

// What a start opens, in this order.
struct Opened {
  std::optional<LogThread> log;
  std::optional<RuntimeLock> lock;
  std::unique_ptr<HttpServer> http;  // null: see StartHttp
  std::optional<Node> node;
};

void SayServing(const Arguments& arguments, const NodeConfig& node,
                const HttpServer* http) {
  const TcpListener tcp = http != nullptr ? http->listener() : TcpListener();
  const bool on_tcp = !tcp.address.empty() && tcp.fault.empty();
  Print(fmt::format("sluiced: ready: driver={} gpus={} socket={} http={}\n",
                    node.driver, node.gpus.size(),
                    arguments.SessionDir() + "/session.sock",
                    on_tcp ? tcp.address : "off"));
}

// A call on another thread still uses objects, so they cannot be destroyed. The
// kernel frees memory and descriptors, so only files must be removed here.
[[noreturn]] void ExitNow(Service& service, Opened& opened) {
  WriteLog(LogLevel::kWarning,
           "stopped, though a device call or a profile was not finished");
  service.RemoveSocket();
  opened.node->own_sim.Remove();
  opened.lock->Remove();
  opened.log.reset();
  _exit(0);
}

absl::Status RunService(const Arguments& arguments, ServiceOptions options,
                        bool takes_over, Opened& opened, DeathRecord& deaths) {
  Node& node = *opened.node;
  SLUICE_ASSIGN_OR_RETURN(const auto service,
                          Service::Start(std::move(options)));
  Administration& administration = service->administration();
  if (takes_over) service->AnswerWhoWaited();
  SLUICE_ASSIGN_OR_RETURN(
      auto admin,
      ServeAdministrators(
          arguments.runtime_dir + "/admin.sock", &administration, SnapshotJson,
          takes_over ? NoAdminSocket::kIsTriedAgain : NoAdminSocket::kRefuses));
  if (opened.http) {
    opened.http->Serve({.snapshot = [&] { return administration.Read(); },
                        .alive = [&] { return administration.Answers(); }});
    const bool late = !opened.http->listener().fault.empty();
    opened.http->WhenListening([&, late](int fd) {
      if (late) WriteLog(LogLevel::kInfo, "metrics are served on TCP now");
      service->KeepHttp(fd);
    });
  }
  SayServing(arguments, node.config, opened.http.get());
  service->SayReady();
  // From here on this daemon removes the simulated node when it ends, even if
  // ranks use the node, unless this daemon hands over.
  if (!node.sim_directory.empty()) node.own_sim.Own(node.sim_directory);
  service->Run();
  deaths.EndInOrder();
  if (service->hands_over()) node.own_sim.Own("");
  opened.http.reset();
  admin.reset();
  if (!service->Finish(kEndingPatience)) ExitNow(*service, opened);
  WriteLog(LogLevel::kInfo, "stopped");
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
  const MonotonicClock clock;
  Opened opened;
  opened.log.emplace();
  // The lock is taken before files are made, so it is held while they are
  // removed.
  SLUICE_ASSIGN_OR_RETURN(RuntimeLock lock,
                          RuntimeLock::Take(arguments.runtime_dir));
  opened.lock.emplace(std::move(lock));
  SLUICE_RETURN_IF_ERROR(MakeOwnDirectory(
      arguments.SessionDir(), "session directory", "--session-dir"));
  auto handed = TakeHandedListener(std::exchange(starter.sockets, {}),
                                   arguments.SessionDir() + "/session.sock");
  if (dies.empty()) SLUICE_RETURN_IF_ERROR(handed.status());
  UniqueFd listener = handed.ok() ? *std::move(handed) : UniqueFd();
  const bool takes_over = IsLeftRanks(starter);
  // HTTP starts before the slow parts, so that /readyz reports the start.
  SLUICE_ASSIGN_OR_RETURN(opened.http, StartHttp(config, arguments.runtime_dir,
                                                 starter.stored, takes_over));
  const auto freeze = [&](const std::string& why) {
    return Freeze(arguments, why, std::move(starter), std::move(listener),
                  deaths, opened.http.get());
  };
  if (!dies.empty()) return freeze(dies);
  SLUICE_ASSIGN_OR_RETURN(Node found, OpenNode(config, arguments.SessionDir()));
  Node& node = opened.node.emplace(std::move(found));
  // Ranks use this simulated node, so a failed start must not remove it.
  if (takes_over) node.own_sim.Own("");
  WriteLog(LogLevel::kInfo, node.description);
  if (const auto may = MayTakeOver(starter.stored, node.config); !may.ok()) {
    return freeze(std::string(may.message()));
  }
  auto policy = UsablePolicy(PolicyFileOf(config, arguments), geteuid(),
                             node.config, ClocksNow(clock));
  if (!policy.ok() && starter.stored.contains(Handover::kState)) {
    return freeze(std::string(policy.status().message()));
  }
  SLUICE_RETURN_IF_ERROR(policy.status());
  SLUICE_ASSIGN_OR_RETURN(
      ServiceOptions options,
      StartOptions(arguments, config, node, std::move(starter), clock));
  options.policy = *std::move(policy);
  options.listener = std::move(listener);
  if (opened.http) {
    options.http = [&http = *opened.http] { return http.listener(); };
  }
  options.deaths = deaths.fd();
  return RunService(arguments, std::move(options), takes_over, opened, deaths);
}

}  // namespace

absl::Status ServeOrSayWhy(const Arguments& arguments, Starter starter) {
  UniqueFd left;
  if (const auto* const kept = FindOrNull(starter.stored, Handover::kDeaths)) {
    SLUICE_ASSIGN_OR_RETURN(left, kept->Duplicate());
  }
  SLUICE_ASSIGN_OR_RETURN(DeathRecord deaths,
                          DeathRecord::Open(std::move(left)));
  deaths.Begin(MonotonicClock().Now());
  const absl::Status status = Serve(arguments, std::move(starter), deaths);
  if (!status.ok()) deaths.SayWhy(std::string(status.message()));
  return status;
}

}  // namespace sluice::daemon
