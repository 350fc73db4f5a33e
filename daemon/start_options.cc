#include "daemon/start_options.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/metrics/snapshot_json.h"
#include "daemon/runtime/process.h"
#include "daemon/service/grant_pages.h"
#include "daemon/service/log/log.h"
#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// The command that checks on SIGHUP whether the program file, which may be a
// new version, would start with the same flags and take over.
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

// Reduces `extents` to what the store has room for, besides the descriptors of
// ranks (Service::MayBeKept) and of some processes of ended sessions. One user
// may have half of the extents, as without a store, or the configured number.
Share KeptExtents(Share extents, const Config& config, const NodeConfig& node,
                  const Starter& starter) {
  const int64_t capacity = Handover::CapacityOf(starter);
  const int64_t ended = std::min<int64_t>(512, capacity / 16);
  const int64_t ranks = std::min<int64_t>(
      Handover::kOfRank * kGrantSlots + Handover::kOwn + ended, capacity / 2);
  const int64_t most = capacity - ranks;
  if (capacity == 0 || most >= extents.all) return extents;
  // Leases of odd sizes make more extents than the number of whole ones.
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

// All options but those that depend on the store.
absl::StatusOr<ServiceOptions> OptionsOf(const Arguments& arguments,
                                         const Config& config, Node& node,
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
  return options;
}

// The time of the start, so that no two daemons have the same; one more than
// the last daemon's if the clock was set back.
uint64_t GenerationBehind(const Starter& starter) {
  const auto now = static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
  const auto kept = starter.stored.find(Handover::kLimits);
  if (kept == starter.stored.end()) return now;
  return std::max(now, GrantPages::GenerationOf(kept->second) + 1);
}

}  // namespace

absl::StatusOr<ServiceOptions> StartOptions(const Arguments& arguments,
                                            const Config& config, Node& node,
                                            Starter starter,
                                            const Clock& clock) {
  SLUICE_ASSIGN_OR_RETURN(ServiceOptions options,
                          OptionsOf(arguments, config, node, clock));
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

absl::StatusOr<WorkerUser> FindWorkerUser(const std::string& name) {
  if (name.empty()) return WorkerUser{};
  std::vector<char> buffer(1 << 16);
  passwd entry = {};
  passwd* found = nullptr;
  getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    return absl::NotFoundError(
        fmt::format("user in [worker] is '{}', and there is no such user: make "
                    "it, or name another",
                    name));
  }
  if (geteuid() == found->pw_uid) return WorkerUser{};
  if (geteuid() != 0) {
    return absl::PermissionDeniedError(fmt::format(
        "user in [worker] is '{}', and only a daemon that runs as root may "
        "change its worker's user: leave the key out",
        name));
  }
  return WorkerUser{found->pw_uid, found->pw_gid};
}

}  // namespace sluice::daemon
