#include "daemon/node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <utility>

#include "daemon/core/links.h"
#include "daemon/pci_links.h"
#include "kernels/device/cuda/nvidia.h"
#include "kernels/device/sim/sim.h"
#include "proto/base/cgroup.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

Bytes RoundDown(Bytes size, Bytes unit) { return (size / unit) * unit; }

// A line of /proc/meminfo, such as "MemTotal:".
Bytes MemoryInfo(const std::string& root, const std::string& line) {
  std::ifstream file(root + "/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  for (std::string unit; file >> key >> kib; std::getline(file, unit)) {
    if (key == line) return KiB(kib);
  }
  return Bytes(0);
}

// What is there, not what is free: pinned memory of jobs is not, and a daemon
// that takes over has a pool of the same size as the one before.
Bytes MemoryOfMachine(const std::string& root) {
  const Bytes all = MemoryInfo(root, "MemTotal:");
  const auto limit = CgroupMemoryLimit();
  return limit ? std::min(all, limit->most) : all;
}

std::vector<LinkSpeed> SimLinks(const SimSettings& sim) {
  if (!sim.links.empty()) return sim.links;
  std::vector<LinkSpeed> links;
  links.reserve(static_cast<size_t>(sim.gpus));
  for (int i = 0; i < sim.gpus; ++i) {
    links.push_back({fmt::format("pcie{}", i), 2e9, 2e9});
  }
  return links;
}

device::SimConfig ToSim(const SimSettings& sim) {
  device::SimConfig to;
  const auto links = SimLinks(sim);
  for (const LinkSpeed& link : links) {
    to.links.push_back(
        {link.name, link.h2d_bytes_per_second, link.d2h_bytes_per_second});
  }
  for (int i = 0; i < sim.gpus; ++i) {
    const std::string link =
        sim.gpu_links.empty() ? links[i % links.size()].name : sim.gpu_links[i];
    to.gpus.push_back(
        {sim.gpu_memory, link, NumaIndex(i * sim.numa_nodes / sim.gpus)});
  }
  to.numa_nodes = sim.numa_nodes;
  to.host_memory = sim.host_memory;
  to.granularity = sim.granularity;
  return to;
}

// The device knows of a link how fast each direction is. Grants alone keep to
// what a parent carries, or both directions together.
LinkSpeed LinkOf(const SimSettings& sim, const device::SimLink& of) {
  LinkSpeed link;
  for (const LinkSpeed& each : sim.links) {
    if (each.name == of.name) link = each;
  }
  link.name = of.name;
  link.h2d_bytes_per_second = of.h2d_bytes_per_second;
  link.d2h_bytes_per_second = of.d2h_bytes_per_second;
  return link;
}

absl::Status OpenSim(const SimSettings& sim, const std::string& directory,
                     Node& node) {
  const absl::Status made = device::CreateSimNode(directory, ToSim(sim));
  // Ranks of an earlier daemon still use the node: it stays as it is.
  if (!absl::IsFailedPrecondition(made)) node.own_sim.Own(directory);
  if (!made.ok() && !absl::IsFailedPrecondition(made)) return made;
  SLUICE_ASSIGN_OR_RETURN(const auto opened, device::SimNode::Open(directory));
  SLUICE_ASSIGN_OR_RETURN(node.driver, device::OpenOwnedSimDriver(directory));
  const device::SimConfig config = opened->config();
  for (const device::SimLink& link : config.links) {
    node.config.links.push_back(LinkOf(sim, link));
  }
  // A node that was there before has the speeds of an earlier configuration.
  SLUICE_RETURN_IF_ERROR(TopologyOf(node.config.links).status());
  for (int i = 0; i < config.numa_nodes; ++i) {
    node.config.hosts.push_back(
        {NumaIndex(i), config.host_memory / config.numa_nodes});
  }
  node.sim_directory = directory;
  SLUICE_ASSIGN_OR_RETURN(node.sim_clocks, device::MakeSimClocks());
  return absl::OkStatus();
}

int NumaNodes(const std::vector<device::DeviceInfo>& devices) {
  uint64_t nodes = 1;
  for (const auto& device : devices) {
    nodes = std::max(nodes, device.numa.value() + 1);
  }
  return static_cast<int>(nodes);
}

// What stands for /dev/nvidia0: who may open it may use the GPU. One that is
// there, of an earlier daemon, keeps its permissions.
absl::Status MakeDeviceNode(const std::string& path) {
  const UniqueFd fd(open(
      path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd && errno == EEXIST) return absl::OkStatus();
  // Like /dev/nvidia0: for everybody, unless an administrator says otherwise.
  if (!fd || fchmod(fd.get(), 0666) != 0) {
    return ErrnoStatus(errno, "make " + path);
  }
  return absl::OkStatus();
}

absl::Status AddGpus(const Config& config, const std::string& root,
                     Node& node) {
  SLUICE_ASSIGN_OR_RETURN(const auto devices, node.driver->Devices());
  const bool sim = !node.sim_directory.empty();
  for (const auto& device : devices) {
    const Bytes spare =
        sim ? Bytes(0) : std::max(GiB(1), device.total_memory * 6 / 100);
    const Bytes pool = config.gpu_pool.value_or(device.total_memory - spare);
    if (pool > device.total_memory) {
      return absl::InvalidArgumentError(fmt::format(
          "gpu_bytes in [pools] is {}, but GPU {} has {}", FormatBytes(pool),
          device.index.value(), FormatBytes(device.total_memory)));
    }
    node.config.gpus.push_back({device.index, device.uuid, device.name,
                                device.link, device.numa, pool,
                                device.total_memory - pool});
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
    const int nodes = NumaNodes(devices);
    const Bytes pool = MemoryOfMachine(root) / 2 / nodes;
    for (int i = 0; i < nodes; ++i) {
      node.config.hosts.push_back({NumaIndex(i), pool});
    }
  }
  return absl::OkStatus();
}

// Each extent is a descriptor of the daemon, and one more that is kept for the
// next: of eight GPUs and two NUMA nodes no more than 1,280.
template <typename Owner>  // GpuConfig or HostConfig
Bytes ExtentOf(const Config& config, const std::vector<Owner>& owners,
               Bytes unit) {
  constexpr int kOfPool = 128;
  Bytes smallest = GiB(1), chosen = MiB(64);
  for (const Owner& owner : owners) {
    smallest = std::min(smallest, owner.pool);
    chosen = std::max(chosen, Bytes(owner.pool.size() / kOfPool));
  }
  if (smallest < GiB(1)) chosen = MiB(4);
  return RoundUp(config.extent.value_or(chosen), unit);
}

// What every size is a multiple of: the driver may want another one of each
// kind of memory, and a rank is told one.
absl::StatusOr<Bytes> GranularityOf(const Node& node) {
  std::vector<device::Placement> all;
  for (const GpuConfig& gpu : node.config.gpus) {
    all.push_back(device::Placement::Gpu(gpu.index));
  }
  for (const HostConfig& host : node.config.hosts) {
    all.push_back(device::Placement::Host(host.numa));
  }
  uint64_t unit = 1;
  for (const device::Placement& where : all) {
    SLUICE_ASSIGN_OR_RETURN(const Bytes each, node.driver->Granularity(where));
    unit = std::lcm(unit, each.size());
  }
  return Bytes(static_cast<int64_t>(unit));
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
    if (config.host_pool.has_value() && !node.sim_directory.empty() &&
        *config.host_pool > host.pool) {
      return absl::InvalidArgumentError(fmt::format(
          "host_bytes in [pools] is {}, but the simulated NUMA node {} has {}: "
          "raise host_memory in [sim]",
          FormatBytes(*config.host_pool), host.numa.value(),
          FormatBytes(host.pool)));
    }
    SLUICE_RETURN_IF_ERROR(
        CheckPool("host_bytes", config.host_pool.value_or(host.pool), unit));
    const Bytes all = host.pool;
    host.pool = RoundDown(config.host_pool.value_or(host.pool), unit);
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
    const Bytes pool = RoundDown(gpu.pool, unit);
    gpu.spare += gpu.pool - pool;
    gpu.pool = pool;
  }
  node.config.host_ready = config.host_ready;
  node.config.extent = {.gpu = ExtentOf(config, node.config.gpus, unit),
                        .host = ExtentOf(config, node.config.hosts, unit)};
  return absl::OkStatus();
}

// The links of a node on cuda, without a speed: a rated one is not reached, and
// how much of it is nobody has measured. Says in a line what is rated.
std::string AddPciLinks(const PciTopology& pci, Node& node) {
  for (const PciLink& each : pci.links) {
    const auto parent = each.link.parent;
    node.config.links.push_back(
        {.name = each.link.name,
         .parent = parent ? pci.links[*parent].link.name : ""});
  }
  std::string text;
  for (size_t i = 0; i < pci.of_gpu.size(); ++i) {
    const auto own = pci.of_gpu[i];
    const std::string& name = node.config.gpus[i].link;
    if (!own) node.config.links.push_back({.name = name});
    text += fmt::format("{}GPU {}: {}", i == 0 ? "; links as rated: " : "; ", i,
                        own ? PathText(pci, *own) : name + ", not in sysfs");
  }
  return text;
}

// "h2d 24.9 GB/s"; empty: not limited.
std::string SpeedText(const char* direction, double bytes_per_second) {
  if (bytes_per_second <= 0) return "";
  return fmt::format(" {} {:.1f} GB/s", direction, bytes_per_second / 1e9);
}

absl::StatusOr<LinkSpeed*> FindLink(std::vector<LinkSpeed>& links,
                                    const std::string& name) {
  std::string has;
  for (LinkSpeed& link : links) {
    if (link.name == name) return &link;
    has += (has.empty() ? "" : ", ") + link.name;
  }
  return absl::InvalidArgumentError(
      fmt::format("links in [cuda] names '{}', which this machine does not "
                  "have: it has {}",
                  name, has));
}

double RatedSpeed(const PciTopology& pci, const std::string& name) {
  for (const PciLink& each : pci.links) {
    if (each.link.name == name) return each.link.h2d;
  }
  return 0;
}

// What an administrator measured. Says in a line what limits.
absl::StatusOr<std::string> SetLinkSpeeds(const std::vector<LinkSpeed>& given,
                                          const PciTopology& pci, Node& node) {
  std::string text;
  for (const LinkSpeed& each : given) {
    SLUICE_ASSIGN_OR_RETURN(LinkSpeed* const link,
                            FindLink(node.config.links, each.name));
    link->h2d_bytes_per_second = each.h2d_bytes_per_second;
    link->d2h_bytes_per_second = each.d2h_bytes_per_second;
    link->both_bytes_per_second = each.both_bytes_per_second;
    const double most =
        std::max(each.h2d_bytes_per_second, each.d2h_bytes_per_second);
    if (const double rated = RatedSpeed(pci, each.name);
        rated > 0 && most > rated) {
      node.config.warnings.push_back(fmt::format(
          "link {} is given at most {:.1f} GB/s in [cuda], and PCIe carries "
          "{:.1f} GB/s: it limits nothing",
          each.name, most / 1e9, rated / 1e9));
    }
    text += fmt::format("{}{}{}{}{}", text.empty() ? "; limits: " : ", ",
                        each.name, SpeedText("h2d", each.h2d_bytes_per_second),
                        SpeedText("d2h", each.d2h_bytes_per_second),
                        SpeedText("both", each.both_bytes_per_second));
  }
  SLUICE_RETURN_IF_ERROR(TopologyOf(node.config.links).status());
  return text;
}

void WarnOfMemfds(Node& node) {
  const device::HostMemoryKind kind = node.driver->HostMemory();
  if (kind.why.empty()) return;
  node.config.warnings.push_back(fmt::format(
      "host memory is of kind {}, which every rank pins by itself ({})",
      kind.name, kind.why));
}

absl::Status AddCudaLinks(const CudaSettings& cuda, const std::string& root,
                          Node& node) {
  std::vector<std::string> addresses;
  for (const GpuConfig& gpu : node.config.gpus) {
    addresses.push_back(gpu.link.starts_with(device::kPciLink)
                            ? gpu.link.substr(std::strlen(device::kPciLink))
                            : "");
  }
  const PciTopology pci = ReadPciTopology(addresses, root);
  node.description += AddPciLinks(pci, node);
  SLUICE_ASSIGN_OR_RETURN(const std::string limits,
                          SetLinkSpeeds(cuda.links, pci, node));
  node.description += limits;
  return absl::OkStatus();
}

std::string Describe(const Node& node, const std::string& root) {
  std::string gpus;
  for (const GpuConfig& gpu : node.config.gpus) {
    gpus += fmt::format("{}GPU {} {} ({} of pool, link {}, NUMA {})",
                        gpus.empty() ? "" : ", ", gpu.index.value(), gpu.name,
                        FormatBytes(gpu.pool), gpu.link, gpu.numa.value());
  }
  Bytes host;
  for (const HostConfig& each : node.config.hosts) host += each.pool;
  const auto limit = CgroupMemoryLimit();
  return fmt::format(
      "{} driver: {}; {} of host memory in {} NUMA node(s) ({} free, cgroup "
      "limit {}); extents of {} and of {} of host memory, granularity {}",
      node.config.driver, gpus, FormatBytes(host), node.config.hosts.size(),
      FormatBytes(MemoryInfo(root, "MemAvailable:")),
      limit ? FormatBytes(limit->most) : "none",
      FormatBytes(node.config.extent.gpu), FormatBytes(node.config.extent.host),
      FormatBytes(node.config.granularity));
}

// A driver that is broken must not become simulated GPUs in silence.
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
    auto cuda = device::OpenCudaDriver();
    if (cuda.ok()) {
      node.driver = *std::move(cuda);
    } else {
      SLUICE_RETURN_IF_ERROR(MaySimulate(config.driver, cuda.status(), root));
      node.config.warnings.push_back(fmt::format(
          "no NVIDIA device here: GPUs are simulated, nothing runs on one ({})",
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
    SLUICE_RETURN_IF_ERROR(AddCudaLinks(config.cuda, root, node));
  }
  return node;
}

}  // namespace sluice::daemon
