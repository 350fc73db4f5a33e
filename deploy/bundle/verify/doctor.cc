// Reports sluicectl doctor's machine checks, and what only the driver reports.
#include <fmt/format.h>

#include <bit>

#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/facts.h"
#include "deploy/bundle/verify/check.h"
#include "kernels/device/cuda/library.h"
#include "kernels/device/driver.h"
#include "proto/base/file_text.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::verify {
namespace {

using device::cuda::Functions;
using nlohmann::json;

// CUdevice_attribute's values in cuda.h.
constexpr struct {
  const char* name;
  int number;
} kAttributes[] = {
    {"multiprocessors", 16},
    {"integrated", 18},
    {"compute_mode", 20},
    {"ecc", 32},
    {"copy_engines", 40},
    {"unified_addressing", 41},
    {"capability_major", 75},
    {"capability_minor", 76},
    {"pageable_access", 88},
    {"same_pointer_for_registered", 91},
    {"host_register", 99},
    {"virtual_memory", 102},
    {"posix_descriptors", 103},
    {"rdma_of_virtual_memory", 110},
    {"numa", 134},
    {"host_numa_memory", 141},
};
constexpr int kDefaultMode = 0;  // the compute_mode for several processes

void AddFinding(json& lines, const char* health, const std::string& what,
                const std::string& said, const std::string& fix = "") {
  lines.push_back({{"what", what},
                   {"health", health},
                   {"said", said},
                   {"fix", fix.empty() ? json(nullptr) : json(fix)}});
}

// Adds the machine's findings. Returns why the driver is unusable, or "".
std::string SayMachine(const Surroundings& here, json& lines) {
  // No daemon is queried: these sockets do not exist.
  ctl::Facts facts = ctl::ReadFacts(
      {.session = here.work + "/none.sock", .admin = here.work + "/none.sock"});
  // A container may hide the device files that show that there is a GPU.
  if (facts.driver.device.empty()) facts.driver.device = "by its driver";
  for (const ctl::Finding& found : ctl::ExamineMachine(facts)) {
    constexpr const char* kHealth[] = {"ok", "warning", "problem"};
    AddFinding(lines, kHealth[static_cast<int>(found.health)], found.what,
               found.said, found.fix);
  }
  const std::string status = TextOf("/proc/self/status");
  const std::string seccomp = ctl::ToldValue(status, "Seccomp");
  AddFinding(
      lines, "ok", "seccomp",
      seccomp == "0" ? "no filter" : "a filter is set (mode " + seccomp + ")");
  AddFinding(lines, "ok", "CPUs", ctl::ToldValue(status, "Cpus_allowed_list"));
  AddFinding(lines, "ok", "memory",
             ctl::ToldValue(TextOf("/proc/meminfo"), "MemTotal"));
  return facts.driver.fault;
}

json AttributesOf(const Functions& driver, int device) {
  json attributes;
  for (const auto& [name, number] : kAttributes) {
    int value = 0;
    const auto result = driver.cuDeviceGetAttribute(&value, number, device);
    attributes[name] = result == 0 ? json(value) : json(nullptr);
  }
  return attributes;
}

void JudgeGpu(const json& gpu, json& lines) {
  const std::string what = fmt::format("GPU {}", gpu["index"].get<int>());
  const json& attributes = gpu["attributes"];
  if (attributes["compute_mode"] != json(kDefaultMode)) {
    AddFinding(
        lines, "problem", what,
        "its compute mode lets one process at a time use it, or none: a daemon "
        "and its ranks are several",
        fmt::format("sudo nvidia-smi -i {} -c 0", gpu["index"].get<int>()));
  }
  for (const char* needed : {"virtual_memory", "posix_descriptors"}) {
    if (attributes[needed] == json(1)) continue;
    AddFinding(
        lines, "problem", what,
        fmt::format("it lacks {}, without which memory cannot be lent", needed),
        "a GPU and a driver that have it");
  }
  const auto granularity = gpu["granularity"].get<uint64_t>();
  if (!std::has_single_bit(granularity)) {
    AddFinding(lines, "problem", what,
               fmt::format("its granularity is {} bytes, no power of two",
                           granularity),
               "tell us: Sluice cannot lend such memory");
  }
}

// Makes and exports a piece of HOST_NUMA memory, as the daemon's driver does.
absl::Status MakeOne(const device::cuda::LoadedLibrary& library) {
  using namespace device::cuda;  // NOLINT: the driver's own names
  int device = 0, offered = 0;
  SLUICE_CUDA(&library, cuDeviceGet, "0", &device, 0);
  SLUICE_CUDA(&library, cuDeviceGetAttribute, "of HOST_NUMA", &offered,
              kAttributeHostNumaVirtualMemory, device);
  if (offered == 0) {
    return absl::UnimplementedError("the driver offers no HOST_NUMA memory");
  }
  AllocationProperties properties = {};
  properties.type = kAllocationPinned;
  properties.handle_types = kHandlePosixFd;
  properties.location = {kLocationHostNuma, 0};
  size_t granularity = 0;
  SLUICE_CUDA(&library, cuMemGetAllocationGranularity, "of HOST_NUMA",
              &granularity, &properties, kGranularityMinimum);
  MemoryHandle handle = 0;
  SLUICE_CUDA(&library, cuMemCreate, "of HOST_NUMA", &handle, granularity,
              &properties, 0);
  int fd = -1;
  const absl::Status exported =
      library.ToStatus(library.functions().cuMemExportToShareableHandle(
                           &fd, handle, kHandlePosixFd, 0),
                       "cuMemExportToShareableHandle of HOST_NUMA");
  const UniqueFd closes(fd);
  SLUICE_CUDA(&library, cuMemRelease, "of HOST_NUMA", handle);
  return exported;
}

// Returns {kind, why, granularity} of NUMA node 0's pinned memory. `kind`:
// "HOST_NUMA", or "memfd", which each process that maps it must pin; then `why`
// is the error of HOST_NUMA.
absl::StatusOr<json> DescribeHostMemory(
    const device::cuda::LoadedLibrary& library, device::Driver& driver) {
  SLUICE_ASSIGN_OR_RETURN(
      const Bytes granularity,
      driver.Granularity(device::Placement::Host(NumaIndex(0))));
  const absl::Status made = MakeOne(library);
  return json{{"kind", made.ok() ? "HOST_NUMA" : "memfd"},
              {"why", made.ok() ? "" : std::string(made.message())},
              {"granularity", granularity.count()}};
}

absl::StatusOr<json> DescribeGpus(json& lines) {
  SLUICE_ASSIGN_OR_RETURN(const auto opened, device::OpenCudaDriver());
  device::Driver& driver = *opened;
  SLUICE_ASSIGN_OR_RETURN(const auto library,
                          device::cuda::LoadedLibrary::Load("libcuda.so.1"));
  SLUICE_ASSIGN_OR_RETURN(const auto devices, driver.Devices());
  json gpus = json::array();
  for (const device::DeviceInfo& info : devices) {
    const auto place = device::Placement::Gpu(info.index);
    SLUICE_ASSIGN_OR_RETURN(const Bytes granularity, driver.Granularity(place));
    int device = 0;
    SLUICE_CUDA(library, cuDeviceGet, "", &device,
                static_cast<int>(info.index.value()));
    gpus.push_back(
        {{"index", info.index.value()},
         {"name", info.name},
         {"memory", info.total_memory.count()},
         {"numa", info.numa.value()},
         {"link", info.link},
         {"granularity", granularity.count()},
         {"attributes", AttributesOf(library->functions(), device)}});
    JudgeGpu(gpus.back(), lines);
  }
  int version = 0;
  SLUICE_CUDA(library, cuDriverGetVersion, "", &version);
  AddFinding(lines, "ok", "CUDA of the driver",
             fmt::format("{}.{}", version / 1000, version % 1000 / 10));
  SLUICE_ASSIGN_OR_RETURN(const json host,
                          DescribeHostMemory(*library, driver));
  return json{{"gpus", gpus}, {"host", host}};
}

// Adds nvidia-smi's output as text for readers, or null if it does not run.
void AddNvidiaSmi(json& value) {
  const auto ask = [](std::vector<std::string> words) -> json {
    const auto told = OutputOf(words, {.patience = absl::Seconds(10)});
    return told.ok() ? json(*told) : json(nullptr);
  };
  value["nvidia_smi"] = {
      {"modes", ask({"nvidia-smi",
                     "--query-gpu=index,name,driver_version,compute_mode,"
                     "persistence_mode,mig.mode.current,ecc.mode.current,"
                     "pcie.link.gen.current,pcie.link.width.current",
                     "--format=csv"})},
      {"topology", ask({"nvidia-smi", "topo", "-m"})}};
}

}  // namespace

Result RunDoctor(const Surroundings& here) {
  const std::string expected = "no line is a problem";
  json lines = json::array();
  const std::string fault = SayMachine(here, lines);
  json value = json::object();
  AddNvidiaSmi(value);
  if (fault.empty()) {
    auto described = DescribeGpus(lines);
    if (described.ok()) {
      value.update(*described);
    } else {
      AddFinding(lines, "problem", "driver",
                 std::string(described.status().message()));
    }
  }
  if (!here.busy.empty()) {
    AddFinding(lines, "warning", "busy GPUs", here.busy,
               "run verify again when these GPUs are free");
  }
  value["lines"] = lines;
  for (const json& line : lines) {
    if (line["health"] != "problem") continue;
    return Failed(value, expected,
                  line["what"].get<std::string>() + ": " +
                      line["said"].get<std::string>() +
                      (line["fix"].is_null()
                           ? ""
                           : "; remedy: " + line["fix"].get<std::string>()));
  }
  return Passed(value, expected);
}

}  // namespace sluice::verify
