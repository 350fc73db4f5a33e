#include "daemon/node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "daemon/bandwidth/topology.h"
#include "daemon/cuda_links.h"
#include "kernels/device/cuda/nvidia.h"
#include "kernels/device/sim/sim.h"
#include "proto/base/cgroup.h"
#include "proto/base/numa.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

Bytes RoundDown(Bytes size, Bytes unit) { return (size / unit) * unit; }

// Returns the memory of NUMA nodes without cores, such as CXL's, in which CUDA
// cannot pin, and warns of each.
Bytes MemoryWithoutCores(const std::string& root, Node& node) {
  Bytes sum;
  for (const NumaNode& each : ReadNumaNodes(root)) {
    if (each.has_cores || each.memory == Bytes(0)) continue;
    sum += each.memory;
    node.config.warnings.push_back(
        fmt::format("NUMA node {} has {} and no cores: it is left out, since "
                    "CUDA cannot pin memory there: numactl -H",
                    each.number, FormatBytes(each.memory)));
  }
  return sum;
}

// Returns the machine's memory, or the limit of this process's cgroup if that
// is less. Memory in use counts too: the pool of a daemon that takes over,
// while jobs have pinned memory, must be as large as before.
Bytes MemoryOfMachine(const std::string& root, Bytes without_cores) {
  const Bytes all = MachineMemory::Read(root).total - without_cores;
  const auto limit = CgroupMemoryLimit("self", root);
  return limit ? std::min(all, limit->most) : all;
}

// Makes a simulated GPU's device file. A file of an earlier daemon keeps its
// permissions.
absl::Status MakeDeviceNode(const std::string& path) {
  const UniqueFd fd(open(
      path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd && errno == EEXIST) return absl::OkStatus();
  // Every user may open it, like /dev/nvidia0, unless an administrator forbids.
  if (!fd || fchmod(fd.get(), 0666) != 0) {
    return ErrnoStatus(errno, "make " + path);
  }
  return absl::OkStatus();
}

void WarnOf(const device::DeviceInfo& device, Node& node) {
  std::vector<std::string>& warnings = node.config.warnings;
  if (!device.fault.empty()) {
    warnings.push_back("not served until sluiced is started again: " +
                       device.fault);
  }
  if (device.is_instance) {
    warnings.push_back(fmt::format(
        "GPU {} is an instance of a GPU (MIG), {}, and CUDA shows a process no "
        "other: serve each instance by a sluiced with a --runtime-dir of its "
        "own and its name in CUDA_VISIBLE_DEVICES: nvidia-smi -L",
        device.index.value(), device.uuid));
  }
}

absl::Status AddGpus(const Config& config, const std::string& root,
                     Node& node) {
  SLUICE_ASSIGN_OR_RETURN(const auto devices, node.driver->Devices());
  const bool sim = !node.sim_directory.empty();
  Bytes largest;
  uint64_t nodes = 1;
  for (const auto& device : devices) {
    largest = std::max(largest, device.total_memory);
    nodes = std::max(nodes, device.numa.value() + 1);
  }
  for (const auto& device : devices) {
    // The size of a faulty GPU is unknown, and jobs may still hold its memory,
    // so its pool is as large as the largest GPU's.
    const Bytes memory = device.fault.empty() ? device.total_memory : largest;
    const Bytes spare = sim ? Bytes(0) : std::max(GiB(1), memory * 6 / 100);
    const Bytes pool = config.gpu_pool.value_or(memory - spare);
    if (pool > memory) {
      return absl::InvalidArgumentError(fmt::format(
          "gpu_bytes in [pools] is {}, but GPU {} has {}", FormatBytes(pool),
          device.index.value(), FormatBytes(memory)));
    }
    const std::string link = device.link.empty()
                                 ? fmt::format("gpu{}", device.index.value())
                                 : device.link;
    node.config.gpus.push_back({device.index, device.uuid, device.name, link,
                                device.numa, pool, memory - pool,
                                device.fault});
    WarnOf(device, node);
    std::string path =
        fmt::format("{}/gpu{}", node.sim_directory, device.index.value());
    if (sim) {
      SLUICE_RETURN_IF_ERROR(MakeDeviceNode(path));
    } else {
      path = device::NvidiaDeviceNode(device.uuid);
    }
    node.gpu_nodes.push_back(std::move(path));
  }
  if (!sim) {
    const Bytes all = MemoryOfMachine(root, MemoryWithoutCores(root, node));
    const Bytes pool = Pinnable(all) / static_cast<int64_t>(nodes);
    for (uint64_t i = 0; i < nodes; ++i) {
      node.config.hosts.push_back({NumaIndex(i), pool});
    }
  }
  return absl::OkStatus();
}

// Returns the size of extents. Each extent costs two descriptors: the daemon's,
// and the store's for the next daemon. So by default a GPU's pool has at most
// 128 extents, if no pool is below 1 GiB. Pinning takes at least 0.25 s per GiB
// and delays other leases, so by default a host extent has at most 1 GiB.
template <typename Owner>  // GpuConfig or HostConfig
Bytes ExtentOf(const Config& config, const std::vector<Owner>& owners,
               Bytes unit, Bytes largest) {
  constexpr int kOfPool = 128;
  Bytes smallest = GiB(1), chosen = MiB(64);
  for (const Owner& owner : owners) {
    smallest = std::min(smallest, owner.pool);
    chosen = std::max(chosen, Bytes(owner.pool.size() / kOfPool));
  }
  if (smallest < GiB(1)) chosen = MiB(4);
  return RoundUp(config.extent.value_or(std::min(chosen, largest)), unit);
}

// Returns the least common multiple of the granularities of usable GPUs and
// NUMA nodes, because ranks get one granularity for all of them.
absl::StatusOr<Bytes> GranularityOf(const Node& node) {
  using device::Placement;
  std::vector<Placement> all;
  for (const GpuConfig& gpu : node.config.gpus) {
    if (gpu.fault.empty()) all.push_back(Placement::Gpu(gpu.index));
  }
  for (const HostConfig& host : node.config.hosts) {
    all.push_back(Placement::Host(host.numa));
  }
  int64_t unit = 1;
  for (const Placement& where : all) {
    SLUICE_ASSIGN_OR_RETURN(const Bytes each, node.driver->Granularity(where));
    unit = std::lcm(unit, each.count());
  }
  return Bytes(unit);
}

absl::Status CheckPool(const char* key, Bytes pool, Bytes unit) {
  if (pool >= unit) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "{} in [pools] leaves a pool of {}, less than the {} that the driver "
      "makes memory in: give it that at least",
      key, FormatBytes(pool), FormatBytes(unit)));
}

absl::Status SizePools(const Config& config, Node& node) {
  SLUICE_ASSIGN_OR_RETURN(node.config.granularity, GranularityOf(node));
  const Bytes unit = node.config.granularity;
  for (HostConfig& host : node.config.hosts) {
    const Bytes all = host.pool, wanted = config.host_pool.value_or(all);
    if (wanted > all && !node.sim_directory.empty()) {
      return absl::InvalidArgumentError(fmt::format(
          "host_bytes in [pools] is {}, but the simulated NUMA node {} has {}: "
          "raise host_memory in [sim]",
          FormatBytes(wanted), host.numa.value(), FormatBytes(all)));
    }
    SLUICE_RETURN_IF_ERROR(CheckPool("host_bytes", wanted, unit));
    host.pool = RoundDown(wanted, unit);
    host.spare = std::max(all - host.pool, Bytes(0));
    if (config.host_ready > host.pool) {
      return absl::InvalidArgumentError(fmt::format(
          "host_ready_bytes in [pools] is {}, but NUMA node {} has a pool of "
          "{}: that is the most that can be made ahead",
          FormatBytes(config.host_ready), host.numa.value(),
          FormatBytes(host.pool)));
    }
  }
  for (GpuConfig& gpu : node.config.gpus) {
    SLUICE_RETURN_IF_ERROR(CheckPool("gpu_bytes", gpu.pool, unit));
    gpu.spare += gpu.pool - RoundDown(gpu.pool, unit);
    gpu.pool = RoundDown(gpu.pool, unit);
  }
  node.config.host_ready = config.host_ready;
  constexpr Bytes kAny(INT64_MAX);
  node.config.extent = {
      .gpu = ExtentOf(config, node.config.gpus, unit, kAny),
      .host = ExtentOf(config, node.config.hosts, unit, GiB(1))};
  return absl::OkStatus();
}

void WarnOfHiddenGpus(Node& node) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return;
  node.config.warnings.push_back(fmt::format(
      "CUDA_VISIBLE_DEVICES={} of sluiced leaves it {} GPU{}, numbered from 0, "
      "and ranks get no others: unset CUDA_VISIBLE_DEVICES",
      Printable(visible), node.config.gpus.size(),
      node.config.gpus.size() == 1 ? "" : "s"));
}

void WarnOfMemfds(Node& node) {
  const device::HostMemoryKind kind = node.driver->HostMemory();
  if (kind.why.empty()) return;
  node.config.warnings.push_back(fmt::format(
      "host memory is of kind {}, which every rank pins by itself ({})",
      kind.name, kind.why));
}

std::string Describe(const Node& node, const std::string& root) {
  std::string gpus;
  for (const GpuConfig& gpu : node.config.gpus) {
    if (!gpu.fault.empty()) continue;  // a warning names it
    gpus += fmt::format("{}GPU {} {} ({} of pool, link {}, NUMA {})",
                        gpus.empty() ? "" : ", ", gpu.index.value(), gpu.name,
                        FormatBytes(gpu.pool), gpu.link, gpu.numa.value());
  }
  Bytes host;
  for (const HostConfig& each : node.config.hosts) host += each.pool;
  const auto limit = CgroupMemoryLimit("self", root);
  return fmt::format(
      "{} driver: {}; {} of host memory in {} NUMA node(s) ({} free, cgroup "
      "limit {}); extents of {} and of {} of host memory, granularity {}",
      node.config.driver, gpus, FormatBytes(host), node.config.hosts.size(),
      FormatBytes(MachineMemory::Read(root).available),
      limit ? FormatBytes(limit->most) : "none",
      FormatBytes(node.config.extent.gpu), FormatBytes(node.config.extent.host),
      FormatBytes(node.config.granularity));
}

device::SimConfig ToSim(const SimSettings& sim) {
  device::SimConfig to;
  for (const LinkSpeed& link : sim.links) {
    to.links.push_back(
        {link.name, link.h2d_bytes_per_second, link.d2h_bytes_per_second});
  }
  for (int i = 0; i < sim.gpus; ++i) {
    if (sim.links.empty()) {
      to.links.push_back({fmt::format("pcie{}", i), 2e9, 2e9});
    }
    const std::string link = sim.gpu_links.empty()
                                 ? to.links[i % to.links.size()].name
                                 : sim.gpu_links[i];
    to.gpus.push_back(
        {sim.gpu_memory, link, NumaIndex(i * sim.numa_nodes / sim.gpus)});
  }
  to.numa_nodes = sim.numa_nodes;
  to.host_memory = sim.host_memory;
  to.granularity = sim.granularity;
  return to;
}

std::vector<HolderSnapshot> FindHolders(const std::string& directory) {
  const auto found = device::FindSimHolders(directory);
  std::vector<HolderSnapshot> holders;
  if (!found.ok()) return holders;
  for (const device::SimHolder& each : *found) {
    // These programs keep duplicates of all descriptors for the next daemon.
    const bool keeps =
        (each.uid == 0 || each.uid == geteuid()) &&
        (each.command == "systemd" || each.command == "sluiced-keeper");
    if (keeps) continue;
    HolderSnapshot& holder = holders.emplace_back(
        HolderSnapshot{each.pid, each.uid, each.command, {}, {}});
    for (const auto& [where, size] : each.held) {
      const bool gpu = where.kind == device::Placement::Kind::kGpu;
      (gpu ? holder.gpu : holder.host) += size;
    }
  }
  return holders;
}

// Returns the device's link `of`, with the parent and the limit of both
// directions together from [sim]. The device does not know these two, so only
// grants enforce them.
LinkSpeed SimLinkOf(const SimSettings& sim, const device::SimLink& of) {
  LinkSpeed link;
  for (const LinkSpeed& each : sim.links) {
    if (each.name == of.name) link = each;
  }
  link.name = of.name;
  link.h2d_bytes_per_second = of.h2d_bytes_per_second;
  link.d2h_bytes_per_second = of.d2h_bytes_per_second;
  return link;
}

// Makes a simulated node in `directory`, which `node` then owns, unless ranks
// of an earlier daemon use one there. Opens its driver, and adds its links and
// NUMA nodes. InvalidArgument: Topology::Make refuses the links.
absl::Status OpenSim(const SimSettings& sim, const std::string& directory,
                     Node& node) {
  const absl::Status made = device::CreateSimNode(directory, ToSim(sim));
  // FailedPrecondition: ranks of an earlier daemon use the node.
  if (!absl::IsFailedPrecondition(made)) node.own_sim.Own(directory);
  if (!made.ok() && !absl::IsFailedPrecondition(made)) return made;
  // Ranks of every user open files in `directory`, whatever the umask is.
  if (chmod(directory.c_str(), 0755) != 0) {
    return ErrnoStatus(errno, "chmod " + directory);
  }
  SLUICE_ASSIGN_OR_RETURN(const auto opened, device::SimNode::Open(directory));
  SLUICE_ASSIGN_OR_RETURN(node.driver, device::OpenOwnedSimDriver(directory));
  const device::SimConfig config = opened->config();
  for (const device::SimLink& link : config.links) {
    node.config.links.push_back(SimLinkOf(sim, link));
  }
  // An earlier daemon's node may have speeds that ParseConfig did not check.
  SLUICE_RETURN_IF_ERROR(bandwidth::Topology::Make(node.config.links).status());
  for (int i = 0; i < config.numa_nodes; ++i) {
    node.config.hosts.push_back(
        {NumaIndex(i), config.host_memory / config.numa_nodes});
  }
  node.sim_directory = directory;
  node.find_holders = [directory] { return FindHolders(directory); };
  SLUICE_ASSIGN_OR_RETURN(node.sim_clocks, device::MakeSimClocks());
  return absl::OkStatus();
}

// Returns OK if GPUs may be simulated. A broken driver must not be replaced by
// simulated GPUs without notice.
absl::Status MaySimulate(Config::DriverChoice driver, const absl::Status& why,
                         const std::string& root) {
  if (driver == Config::DriverChoice::kCuda) return why;
  const std::string device = device::FindNvidiaDevice(root);
  if (device.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "this machine has an NVIDIA GPU ({}), but its driver cannot be used: {}; "
      "mend it, or simulate GPUs on purpose with sluiced --driver sim",
      device, std::string(why.message())));
}

}  // namespace

absl::StatusOr<Node> OpenNode(const Config& config,
                              const std::string& runtime_dir,
                              const std::string& root) {
  Node node;
  if (config.driver != Config::DriverChoice::kSim) {
    auto cuda = device::OpenCudaDriver(config.host_memory);
    if (cuda.ok()) {
      node.driver = *std::move(cuda);
    } else {
      SLUICE_RETURN_IF_ERROR(MaySimulate(config.driver, cuda.status(), root));
      node.config.warnings.push_back(fmt::format(
          "this machine has no NVIDIA device, so GPUs are simulated ({})",
          std::string(cuda.status().message())));
    }
  }
  if (node.driver == nullptr) {
    SLUICE_RETURN_IF_ERROR(OpenSim(config.sim, runtime_dir + "/sim", node));
  }
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) == 0) {
    node.config.hostname = Printable(name.data());
  }
  node.config.driver = std::string(node.driver->name());
  node.config.own_uid = geteuid();
  node.config.principal_limits = config.principal_limits;
  node.config.job_limits = config.job_limits;
  node.config.named_job_limits = config.named_job_limits;
  node.config.user_weights = config.user_weights;
  node.config.wait_limits.longest = config.longest_wait;
  node.config.plan_time_limit = config.plan_time_limit;
  SLUICE_RETURN_IF_ERROR(AddGpus(config, root, node));
  SLUICE_RETURN_IF_ERROR(SizePools(config, node));
  node.description = Describe(node, root);
  WarnOfMemfds(node);
  if (node.sim_directory.empty()) {
    WarnOfHiddenGpus(node);
    node.config.extent_limits.host_kept_for = absl::Minutes(10);
    SLUICE_RETURN_IF_ERROR(AddCudaLinks(config.cuda, root, node));
  }
  return node;
}

}  // namespace sluice::daemon
