// Checks of the machine: driver, limits, memory.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "absl/strings/str_split.h"
#include "client/ctl/doctor/checks.h"
#include "kernels/device/driver.h"
#include "proto/base/simulated.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

// With fewer a node of eight GPUs has too few extents, each with a descriptor
// and a second one that is kept for the next daemon (daemon/quota).
constexpr int64_t kEnoughFiles = 8192;

Finding CheckDriver(const Facts& facts) {
  const DriverFacts& driver = facts.driver;
  if (driver.device.empty() && !driver.fault.empty()) {
    return Ok("no NVIDIA GPU here: GPUs are simulated");
  }
  if (!driver.fault.empty()) {
    // A fault of a single GPU ends with its remedy (DeviceInfo::fault).
    const size_t remedy = driver.fault.rfind(": sudo ");
    return Problem(
        fmt::format("this machine has an NVIDIA GPU ({}), but its driver "
                    "cannot be used: {}",
                    driver.device, driver.fault.substr(0, remedy)),
        remedy != std::string::npos ? driver.fault.substr(remedy + 2)
        : driver.module_loaded ? "sudo nvidia-modprobe -u -c 0 && nvidia-smi"
                               : "sudo modprobe nvidia-uvm");
  }
  if (Reached(facts) && !facts.daemon.gpu_faults.empty()) {
    const std::string& first = facts.daemon.gpu_faults.front();
    const size_t end = first.rfind(": ");
    const size_t more = facts.daemon.gpu_faults.size() - 1;
    return Problem(first.substr(0, end) +
                       (more > 0 ? fmt::format(", and {} more", more) : ""),
                   first.substr(end + 2));
  }
  if (Reached(facts) && IsSimulated(facts.daemon.driver)) {
    return Warning(
        "NVIDIA's driver works, but sluiced simulates its GPUs: it was told "
        "to, or was started before the driver was there",
        facts.unit ? "sudo sed -i 's/^ *driver *= *\"sim\"/driver = "
                     "\"auto\"/' /etc/sluice/sluiced.toml && "
                     "sudo systemctl restart sluiced"
                   : EndAndStart(facts));
  }
  return Ok("NVIDIA's driver works");
}

Finding CheckPersistence(const Facts& facts) {
  const DriverFacts& driver = facts.driver;
  if (driver.device.empty()) return Ok("no NVIDIA GPU here");
  if (!driver.persistence) {
    return Warning("nvidia-smi does not tell whether it is on",
                   "nvidia-smi --query-gpu=persistence_mode --format=csv");
  }
  std::string off;
  for (size_t i = 0; i < driver.persistence->size(); ++i) {
    if (!(*driver.persistence)[i])
      off += fmt::format("{}{}", off.empty() ? "" : ", ", i);
  }
  if (off.empty()) return Ok("on");
  return Warning(
      fmt::format("off on GPU {}: the driver leaves a GPU that nobody uses, "
                  "and whoever is next waits seconds for it",
                  off),
      "sudo nvidia-smi -pm 1");
}

// A remark if the limits are not those of the daemon's process.
std::string CgroupOwner(const Facts& facts) {
  if (facts.process.hidden) return "here, as hidepid hides sluiced in /proc: ";
  return facts.process.pid ? "" : "here, where no sluiced is seen: ";
}

Finding CheckLockedMemory(const Facts& facts) {
  if (!facts.process.locked_bytes) return Ok(CgroupOwner(facts) + "unlimited");
  const std::string most = CgroupOwner(facts) + "at most " +
                           FormatBytes(Bytes(*facts.process.locked_bytes));
  if (facts.driver.device.empty()) {
    return Ok(most + "; simulated GPUs need none");
  }
  const std::string said = most + ": host memory beyond may not be pinned";
  if (facts.unit) return Warning(said, kShippedUnit);
  if (!facts.process.pid) {
    return Warning(said, "sudo prlimit --pid $$ --memlock=unlimited");
  }
  return Warning(said, fmt::format("sudo prlimit --pid {} --memlock=unlimited",
                                   *facts.process.pid));
}

Finding CheckOpenFiles(const Facts& facts) {
  if (!facts.process.open_files) return Ok(CgroupOwner(facts) + "unlimited");
  const int64_t most = *facts.process.open_files;
  // A keeper passes its own limit on to the next daemon.
  const std::string fix =
      facts.unit ? kShippedUnit
      : facts.keeper && facts.process.pid
          ? fmt::format(
                "sudo prlimit --pid $(ps -o ppid= -p {}) "
                "--nofile=65536:65536 && {}",
                *facts.process.pid, Reload(facts))
          : "sudo prlimit --pid $$ --nofile=65536:65536 && " +
                EndAndStart(facts);
  const std::string said =
      fmt::format("{}at most {}", CgroupOwner(facts), most);
  if (facts.unit && most <= facts.unit->store_most) {
    return Problem(fmt::format("{}, but systemd may keep {}: the next daemon "
                               "could not be started with all of them",
                               said, facts.unit->store_most),
                   fix);
  }
  if (most < kEnoughFiles) {
    return Warning(fmt::format("{}: each piece of memory is one or two, so "
                               "large pools do not fit",
                               said),
                   fix);
  }
  return Ok(said);
}

// For memory.stat the command only shows the limit, which may be that of a
// group that only the host sees.
std::string RaiseLimit(const std::string& file) {
  const std::string path = ShellWord(file);
  if (file.ends_with("/memory.stat")) {
    return "grep hierarchical_memory_limit " + path;
  }
  const char* const none = file.ends_with("/memory.max") ? "max" : "-1";
  return fmt::format("echo {} | sudo tee {}", none, path);
}

Finding CheckMemoryLimit(const Facts& facts) {
  const auto& limit = facts.process.memory;
  if (!limit) return Ok(CgroupOwner(facts) + "no cgroup limits it");
  const std::string said = fmt::format("{}at most {} ({})", CgroupOwner(facts),
                                       FormatBytes(limit->most), limit->file);
  const bool of_unit =
      limit->file.find("/sluiced.service/") != std::string::npos;
  if (of_unit) {
    return Warning(said +
                       ": at it the kernel kills the one process that owns "
                       "every job's memory",
                   "sudo systemctl set-property sluiced MemoryMax=infinity");
  }
  if (Reached(facts) && facts.daemon.host_pools > limit->most) {
    return Warning(fmt::format("{}, but host memory of {} is to be leased",
                               said, FormatBytes(facts.daemon.host_pools)),
                   RaiseLimit(limit->file));
  }
  return Ok(said);
}

Finding CheckHugePages(const Facts& facts) {
  const MachineFacts& machine = facts.machine;
  if (machine.huge_pages == 0) return Ok("none are set aside");
  return Warning(
      fmt::format("{} of {} are set aside ({}): Sluice does not use them, and "
                  "they are not there for its pools",
                  machine.huge_pages, FormatBytes(machine.huge_page),
                  FormatBytes(machine.huge_page * machine.huge_pages)),
      "sudo sysctl vm.nr_hugepages=0");
}

Finding CheckNuma(const Facts& facts) {
  const std::vector<int> online = ParseNodes(facts.machine.online_nodes);
  const std::vector<int> allowed = ParseNodes(facts.process.memory_nodes);
  if (online.empty() || allowed.empty()) {
    return Ok("the kernel does not tell of nodes");
  }
  if (std::includes(allowed.begin(), allowed.end(), online.begin(),
                    online.end())) {
    return Ok(fmt::format("{} node{}, memory of each may be had", online.size(),
                          online.size() == 1 ? "" : "s"));
  }
  return Warning(
      fmt::format("{}memory of nodes {} only, but the machine has {}",
                  CgroupOwner(facts), facts.process.memory_nodes,
                  facts.machine.online_nodes),
      facts.unit
          ? "sudo systemctl set-property sluiced AllowedMemoryNodes="
          : fmt::format("echo {} | sudo tee /sys/fs/cgroup$(sed s/^0::// "
                        "/proc/{}/cgroup)/cpuset.mems",
                        facts.machine.online_nodes,
                        facts.process.pid ? std::to_string(*facts.process.pid)
                                          : "self"));
}

Finding CheckHostMemory(const Facts& facts) {
  if (!Reached(facts)) return Ok("not known: sluiced does not tell");
  const DaemonFacts& daemon = facts.daemon;
  if (IsSimulated(daemon.driver)) return Ok("simulated");
  if (daemon.host_memory.empty()) return Ok("this sluiced does not tell");
  if (daemon.host_memory_why.empty()) return Ok(daemon.host_memory);
  if (daemon.host_memory_why == device::kToldSo) {
    return Ok(daemon.host_memory + ", " + daemon.host_memory_why);
  }
  return Warning(
      fmt::format("{}, which every rank pins by itself when it leases: {}",
                  daemon.host_memory, daemon.host_memory_why),
      "nvidia-smi --query-gpu=driver_version --format=csv");
}

constexpr Check kMachineChecks[] = {
    {"driver", CheckDriver},
    {"persistence mode", CheckPersistence},
    {"locked memory", CheckLockedMemory},
    {"open files", CheckOpenFiles},
    {"memory limit", CheckMemoryLimit},
    {"huge pages", CheckHugePages},
    {"NUMA", CheckNuma},
    {"host memory", CheckHostMemory},
};

}  // namespace

std::span<const Check> MachineChecks() { return kMachineChecks; }

std::vector<int> ParseNodes(const std::string& list) {
  std::vector<int> nodes;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    int first = 0, last = 0;
    const char* const end = part.data() + part.size();
    auto read = std::from_chars(part.data(), end, first);
    if (read.ec != std::errc()) return {};
    last = first;
    if (read.ptr != end) {
      if (*read.ptr != '-') return {};
      read = std::from_chars(read.ptr + 1, end, last);
      if (read.ec != std::errc() || read.ptr != end) return {};
    }
    if (last < first || last - first > 4096) return {};
    for (int node = first; node <= last; ++node) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace sluice::ctl
