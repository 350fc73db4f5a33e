#include "kernels/device/sim/state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <set>

#include "proto/base/status.h"

namespace sluice::device {

absl::Status BadNode(const std::string& message) {
  return absl::InvalidArgumentError("simulated node: " + message);
}

namespace {

int FindLink(const SimConfig& config, std::string_view name) {
  for (size_t i = 0; i < config.links.size(); ++i) {
    if (config.links[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

absl::Status CheckLinks(const SimConfig& config) {
  if (config.links.size() > kSimMaxLinks) {
    return BadNode(
        fmt::format("{} links; at most {}", config.links.size(), kSimMaxLinks));
  }
  std::set<std::string_view> names;
  for (const SimLink& link : config.links) {
    if (link.name.empty() || link.name.size() >= kSimNameLength) {
      return BadNode(fmt::format("link name '{}' must have 1 to {} characters",
                                 link.name, kSimNameLength - 1));
    }
    if (!names.insert(link.name).second) {
      return BadNode(fmt::format("link '{}' is given twice", link.name));
    }
    SLUICE_RETURN_IF_ERROR(
        CheckLinkSpeed(link.name, link.h2d_bytes_per_second));
    SLUICE_RETURN_IF_ERROR(
        CheckLinkSpeed(link.name, link.d2h_bytes_per_second));
  }
  return absl::OkStatus();
}

absl::Status CheckGpus(const SimConfig& config) {
  if (config.gpus.empty() || config.gpus.size() > kSimMaxGpus) {
    return BadNode(fmt::format("{} GPUs; it needs 1 to {}", config.gpus.size(),
                               kSimMaxGpus));
  }
  for (size_t i = 0; i < config.gpus.size(); ++i) {
    const SimGpu& gpu = config.gpus[i];
    if (FindLink(config, gpu.link) < 0) {
      return BadNode(fmt::format(
          "GPU {} copies over link '{}', which is not given", i, gpu.link));
    }
    if (gpu.numa.value() >= static_cast<uint64_t>(config.numa_nodes)) {
      return BadNode(fmt::format("GPU {} is on NUMA node {}; there are {}", i,
                                 gpu.numa.value(), config.numa_nodes));
    }
    if (gpu.memory < config.granularity) {
      return BadNode(fmt::format("GPU {} has {} of memory; it needs {} or more",
                                 i, FormatBytes(gpu.memory),
                                 FormatBytes(config.granularity)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLinkSpeed(std::string_view link, double speed) {
  if (std::isfinite(speed) && speed >= 0) return absl::OkStatus();
  return BadNode(fmt::format(
      "link '{}' has speed {} bytes/s: it must be positive, or 0 for no limit",
      link, speed));
}

absl::Status CheckSimConfig(const SimConfig& config) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t granularity = config.granularity.count();
  if (granularity < page || granularity % page != 0) {
    return BadNode(
        fmt::format("granularity {} must be a multiple of the page, {}",
                    FormatBytes(config.granularity), FormatBytes(Bytes(page))));
  }
  if (config.numa_nodes < 1 || config.numa_nodes > kSimMaxNuma) {
    return BadNode(fmt::format("{} NUMA nodes; it needs 1 to {}",
                               config.numa_nodes, kSimMaxNuma));
  }
  if (config.host_memory < config.granularity) {
    return BadNode(fmt::format("host memory of {} is less than one granule, {}",
                               FormatBytes(config.host_memory),
                               FormatBytes(config.granularity)));
  }
  SLUICE_RETURN_IF_ERROR(CheckLinks(config));
  return CheckGpus(config);
}

void WriteConfig(const SimConfig& config, SharedState& state) {
  state.size = sizeof(SharedState);
  state.granularity = config.granularity.count();
  state.host_memory = config.host_memory.count();
  state.numa_nodes = static_cast<uint32_t>(config.numa_nodes);
  state.gpu_count = static_cast<uint32_t>(config.gpus.size());
  state.link_count = static_cast<uint32_t>(config.links.size());
  for (size_t i = 0; i < config.links.size(); ++i) {
    const SimLink& link = config.links[i];
    link.name.copy(state.links[i].name, kSimNameLength - 1);
    state.links[i].bytes_per_second[0] = link.h2d_bytes_per_second;
    state.links[i].bytes_per_second[1] = link.d2h_bytes_per_second;
  }
  for (size_t i = 0; i < config.gpus.size(); ++i) {
    const SimGpu& gpu = config.gpus[i];
    state.gpus[i].memory = gpu.memory.count();
    state.gpus[i].link = static_cast<uint32_t>(FindLink(config, gpu.link));
    state.gpus[i].numa = static_cast<uint32_t>(gpu.numa.value());
  }
  state.magic = kSimMagic;
}

SimConfig ReadConfig(const SharedState& state) {
  SimConfig config;
  config.numa_nodes =
      static_cast<int>(std::min<uint32_t>(state.numa_nodes, kSimMaxNuma + 1));
  config.host_memory = Bytes(state.host_memory);
  config.granularity = Bytes(state.granularity);
  const uint32_t links = std::min<uint32_t>(state.link_count, kSimMaxLinks);
  for (uint32_t i = 0; i < links; ++i) {
    const SharedLink& link = state.links[i];
    config.links.push_back(
        {std::string(link.name, strnlen(link.name, kSimNameLength)),
         link.bytes_per_second[0], link.bytes_per_second[1]});
  }
  const uint32_t gpus = std::min<uint32_t>(state.gpu_count, kSimMaxGpus);
  for (uint32_t i = 0; i < gpus; ++i) {
    const uint32_t link = state.gpus[i].link;
    config.gpus.push_back({Bytes(state.gpus[i].memory),
                           link < links ? config.links[link].name : "",
                           NumaIndex(state.gpus[i].numa)});
  }
  return config;
}

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::StatusOr<Mapped<SharedClocks>> Map(int fd, int flags) {
  void* const at = mmap(nullptr, sizeof(SharedClocks), PROT_READ | PROT_WRITE,
                        MAP_SHARED | flags, fd, 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "map the clocks of links");
  return Mapped<SharedClocks>(static_cast<SharedClocks*>(at));
}

}  // namespace

absl::StatusOr<UniqueFd> MakeSimClocks() {
  UniqueFd fd(
      memfd_create("sluice-sim-clocks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), sizeof(SharedClocks)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "make the clocks of simulated links");
  }
  return fd;
}

absl::StatusOr<Mapped<SharedClocks>> MapClocks(const UniqueFd& fd) {
  struct stat status;
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals ||
      fstat(fd.get(), &status) != 0 || status.st_size != sizeof(SharedClocks)) {
    return absl::InvalidArgumentError(
        "this descriptor is not of the clocks of simulated links: use the same "
        "version of sluiced and libsluice");
  }
  return Map(fd.get(), 0);
}

absl::StatusOr<Mapped<SharedClocks>> PrivateClocks() {
  return Map(-1, MAP_ANONYMOUS);
}

}  // namespace sluice::device
