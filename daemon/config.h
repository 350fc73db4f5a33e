// The daemon's settings, which may be set in a TOML file.
//
// Thread safety: any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/node/types.h"
#include "daemon/quota/quotas.h"
#include "daemon/service/log/log.h"
#include "kernels/device/driver.h"
#include "proto/base/units.h"

namespace sluice::daemon {

struct SimSettings {
  int gpus = 2;
  Bytes gpu_memory = MiB(36);
  Bytes host_memory = MiB(384);
  int numa_nodes = 1;
  Bytes granularity = KiB(64);
  // Empty: one link per GPU ("pcie0", …) of 2 GB/s each way.
  std::vector<LinkSpeed> links;
  // The link of each GPU. Empty: GPU i has link i, modulo the number of links.
  std::vector<std::string> gpu_links;
};

// Speeds of links that cuda_links.h detects.
struct CudaSettings {
  std::vector<LinkSpeed> links;
};

inline constexpr char kDefaultHttpListen[] = "127.0.0.1:9435";

struct Config {
  enum class DriverChoice { kAuto, kSim, kCuda };
  DriverChoice driver = DriverChoice::kAuto;
  device::HostMemoryChoice host_memory = device::HostMemoryChoice::kAuto;
  SimSettings sim;
  CudaSettings cuda;
  std::optional<Bytes> gpu_pool;   // per GPU; unset: see node.h
  std::optional<Bytes> host_pool;  // per NUMA node; unset: see node.h
  Bytes host_ready;  // part of host_pool that is made before leases need it
  std::optional<Bytes> extent;  // unset: a 128th of a pool; see node.cc
  // True if a rank may use a GPU only if it can open the GPU's device file.
  bool gpus_are_shown = true;
  QuotaSettings quota;
  CgroupCut cgroups = CgroupCut::Make(CgroupCut::Defaults()).value();
  Limits principal_limits, job_limits;
  std::map<std::string, Limits> named_job_limits;
  std::map<uint32_t, double> user_weights;  // NodeConfig::user_weights
  // Empty: off. Unset: kDefaultHttpListen.
  std::optional<std::string> http_listen;
  // The group that may open http.sock; empty: only the daemon's user.
  std::string http_socket_group;
  // The folder of the policy file. Empty: no policy is kept. Unset:
  // PolicyFileOf (arguments.h) chooses.
  std::optional<std::string> policy_folder;
  absl::Duration longest_wait = absl::Minutes(10);
  absl::Duration plan_time_limit = absl::Seconds(20);
  Bytes worker_memory = GiB(4);  // address space of one plan worker
  std::string worker_user;       // empty: the daemon's user
  LogLevel log_level = LogLevel::kInfo;
  // After this many deaths within DeathRecord::kWindow the next daemon is
  // frozen; 0: never.
  int freeze_after = 5;
};

absl::StatusOr<Config::DriverChoice> ParseDriver(const std::string& text);

// InvalidArgument names the line, the key and the allowed values, such as
// "sluiced.toml:7: 'gpus' must be …". `path` is only for messages.
absl::StatusOr<Config> ParseConfig(std::string_view text,
                                   const std::string& path);
absl::StatusOr<Config> ReadConfig(const std::string& path);

}  // namespace sluice::daemon
