// Types of the daemon's policy: principals, pools, peers, the node. Plain data.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/bandwidth/topology.h"
#include "daemon/quota/principal.h"
#include "proto/base/find.h"
#include "proto/base/ids.h"
#include "proto/base/shortage.h"
#include "proto/base/units.h"

namespace sluice::daemon {

// A job: its name is unique within its principal.
struct JobKey {
  Principal principal;
  std::string name;
  auto operator<=>(const JobKey&) const = default;
};

// The number of a principal that has a holder (ledger.h) or an extent.
using PrincipalId = Id<struct PrincipalTag>;
// A round of planning, for one job or several (planning/plans.h).
using PlanRoundId = Id<struct PlanRoundTag>;
// Chosen by the client; unique within its session.
using RequestId = Id<struct RequestTag>;

enum class PoolKind { kGpu, kHost };

// The memory of one GPU, or the pinned memory of one NUMA node.
struct PoolId {
  PoolKind kind = PoolKind::kGpu;
  uint64_t ordinal = 0;
  auto operator<=>(const PoolId&) const = default;
};

inline Shortage ShortageIn(PoolKind kind) {
  return kind == PoolKind::kGpu ? Shortage::kGpuMemory : Shortage::kHostMemory;
}

// Whether a process other than the daemon has a mapping or a descriptor of an
// extent, or will receive a descriptor that was sent.
enum class Held { kNo, kYes, kUnknown };

struct Amounts {
  Bytes gpu, host;
  Bytes& of(PoolKind kind) { return kind == PoolKind::kGpu ? gpu : host; }
  Bytes of(PoolKind kind) const { return kind == PoolKind::kGpu ? gpu : host; }
  Amounts& operator+=(const Amounts& more) {
    gpu += more.gpu;
    host += more.host;
    return *this;
  }
  bool operator==(const Amounts&) const = default;
};

// Returns "GPU 0" or "NUMA node 1" for messages.
std::string Name(PoolId pool);

// The process at the other end of a session, as the kernel reports it.
struct Peer {
  Principal principal;
  int pid = 0;
  uint64_t start_ticks = 0;  // field 22 of /proc/PID/stat
  bool operator==(const Peer&) const = default;
};

// How a process ended, if the kernel reports it.
struct Exit {
  enum class Kind { kUnknown, kStatus, kSignal };
  Kind kind = Kind::kUnknown;
  int code = 0;  // exit status or signal number
};

// Bytes per second, kH2d and kD2h (proto/base/grant_page.h); 0: none.
using CopyRates = std::array<double, 2>;

// What a rank's plan copies in each direction.
struct PlanDemand {
  CopyRates rates = {0, 0};         // while a layer runs
  std::array<Bytes, 2> step_bytes;  // all layers, one forward and backward
  bool operator==(const PlanDemand&) const = default;
};

// Copies that were granted after compute needed them.
struct LateCopies {
  uint64_t copies = 0;
  double seconds = 0;  // total time that late copies waited at the front
  void Add(const LateCopies& more) {
    copies += more.copies;
    seconds += more.seconds;
  }
  bool operator==(const LateCopies&) const = default;
};
using LateDirections = std::array<LateCopies, 2>;  // kH2d and kD2h

struct GpuConfig {
  DeviceIndex index;
  std::string uuid;
  std::string name;
  std::string link;
  NumaIndex numa;
  Bytes pool;
  Bytes spare;  // memory of the device outside the pool
  // Why the GPU cannot be used (device::DeviceInfo); empty: it can. A GPU with
  // a fault keeps its number, and its pool has no free memory.
  std::string fault = {};
};

struct HostConfig {
  NumaIndex numa;
  Bytes pool;
  Bytes spare;
};

// Limits of sums over the node (all GPUs, all NUMA nodes).
struct Limits {
  static constexpr Bytes kUnlimited{INT64_MAX};
  Bytes gpu = kUnlimited;
  Bytes host = kUnlimited;
  bool operator==(const Limits&) const = default;
  Bytes of(PoolKind kind) const { return kind == PoolKind::kGpu ? gpu : host; }
};

// Limits of the number of extents: each takes a descriptor of the daemon.
struct ExtentLimits {
  size_t all = 1 << 19;
  size_t each = 1 << 18;  // of one principal
  // `each` follows from this process's limit of open files, as `all` always
  // does, and not from the configuration.
  bool each_of_open_files = false;
  // Reserved for each attached rank: other principals cannot have them.
  size_t per_rank = 16;
  // Extents made and destroyed per second for one principal, with bursts of up
  // to `each`.
  double changes_per_second = 1000;
  // How long idle extents are kept, for a restarted job, while their principal
  // has a process.
  absl::Duration kept_for = absl::Minutes(5);
  // How long they are kept after the principal's last process has ended.
  absl::Duration orphans_kept_for = absl::Seconds(2);
  // For host memory that takes long to pin: replaces kept_for if that is
  // shorter, and also orphans_kept_for if the same user's next process may have
  // the extents (HasHeir).
  absl::Duration host_kept_for = absl::ZeroDuration();
};

struct WaitLimits {
  size_t each = 64;  // of one principal
  size_t all = 512;
  absl::Duration longest = absl::Hours(1);
};

// Limits of the bytes of profiles and plans in the saved state. `each` has room
// for the largest profile that is read (proto/plan/codec.h).
struct ProfileLimit {
  Bytes each = MiB(16);  // of one principal
  Bytes all = MiB(32);
};

// The node and its settings. A Core changes only measured links.
struct NodeConfig {
  std::string hostname;
  std::string driver = "sim";  // or "cuda"
  uint64_t generation = 1;
  uint32_t own_uid = 0;  // the daemon's user, which sees everything
  std::vector<GpuConfig> gpus;
  std::vector<HostConfig> hosts;
  std::vector<LinkSpeed> links;
  // The size of extents. A lease has whole extents, and a smaller one for the
  // rest (the tail).
  Amounts extent{MiB(64), MiB(64)};
  Bytes host_ready;  // on each NUMA node: memory made before leases need it
  Bytes granularity = KiB(64);
  ExtentLimits extent_limits;
  WaitLimits wait_limits;
  ProfileLimit profile_limit;
  // Warnings about this start for an operator, one sentence each.
  std::vector<std::string> warnings;
  Limits principal_limits;
  Limits job_limits;
  std::map<std::string, Limits> named_job_limits;
  // Weights of users in the fair shares of links; default 1.
  static constexpr double kLeastWeight = 0.01, kMostWeight = 100;
  std::map<uint32_t, double> user_weights;
  double WeightOf(const Principal& who) const {
    return FindOr(user_weights, who.uid, 1);
  }
  absl::Duration plan_time_limit = absl::Seconds(20);
  // How long a joining job's plan waits for memory that running jobs free.
  absl::Duration join_wait = absl::Seconds(60);
  // How long a lease may wait for memory that running jobs free. Less than the
  // 60 s that clients wait for an answer.
  absl::Duration lease_wait = absl::Seconds(45);
  // How long ranks may take to answer a new plan, which they do at their next
  // step boundary.
  absl::Duration change_wait = absl::Minutes(30);
  // The delay of new plans after a job has left, since more jobs often leave.
  absl::Duration leave_delay = absl::Milliseconds(200);
  absl::Duration hello_timeout = absl::Seconds(10);
  int max_sessions = 2048;
  int max_half_open = 1024;
  int max_half_open_each = 128;  // of one principal
};

}  // namespace sluice::daemon
