// Tests how the daemon reads a machine with GPUs: the cuda driver on the strict
// fake, with a made-up /sys of folders and files.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "daemon/bandwidth/topology.h"
#include "daemon/node.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fake_cuda/control.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::StatusIs;
using ::sluice::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The fake's defaults. OpenCuda sets them first, because the fake keeps the
// settings of earlier nodes.
constexpr char kGpus[] =
    "gpus=2,memory_mib=4096,host_numa=1,lose=-1,mig=0,compute_mode=0";

void WriteMemoryInfo(const TempDir& root, Bytes total, Bytes available) {
  std::filesystem::create_directories(root.path() + "/proc");
  std::ofstream(root.path() + "/proc/meminfo")
      << "MemTotal: " << total / KiB(1) << " kB\nMemFree: 4 kB\n"
      << "MemAvailable: " << available / KiB(1) << " kB\n";
}

absl::StatusOr<Node> OpenCuda(const TempDir& root, Config config = {},
                              const char* machine = kGpus) {
  fake_cuda::fake_cuda_set(kGpus);
  fake_cuda::fake_cuda_set(machine);
  if (!std::filesystem::exists(root.path() + "/proc/meminfo")) {
    WriteMemoryInfo(root, GiB(4), GiB(3));
  }
  const TempDir run;
  config.driver = Config::DriverChoice::kCuda;
  return OpenNode(config, run.path(), root.path());
}

// Puts both GPUs of the fake, on PCI buses 3a and 3b, behind one switch.
void AddSwitch(const TempDir& root) {
  const std::string devices = root.path() + "/sys/devices/";
  const std::string bus = root.path() + "/sys/bus/pci/devices/";
  std::filesystem::create_directories(bus);
  const auto add = [&](const std::string& path) {
    std::filesystem::create_directories(devices + path);
    std::filesystem::create_symlink(
        "../../../devices/" + path,
        bus + std::filesystem::path(path).filename().string());
    std::ofstream(devices + path + "/numa_node") << "1\n";
  };
  const std::string up = "pci0000:37/0000:37:01.0/0000:38:00.0";
  add("pci0000:37/0000:37:01.0");
  add(up);
  for (const std::string n : {"a", "b"}) {
    add(up + "/0000:39:0" + n + ".0");
    add(up + "/0000:39:0" + n + ".0/0000:3" + n + ":00.0");
  }
}

std::vector<std::string> NamesAbove(const Node& node, size_t gpu) {
  std::vector<std::string> names;
  for (const size_t i :
       LinkPath(node.config.links, node.config.gpus[gpu].link)) {
    names.push_back(node.config.links[i].name);
  }
  return names;
}

// Guards against sizes that are multiples only of GPU 0's granularity: host
// memory of such a size could not be allocated.
TEST(CudaNode, SizesAreMultiplesOfEachKindsGranularity) {
  const TempDir root;
  for (const char* granularities :
       {"gpus=2,memory_mib=4096,gpu_granularity_kib=2048,"
        "host_granularity_kib=4096",
        "gpus=2,memory_mib=4096,gpu_granularity_kib=4096,"
        "host_granularity_kib=64"}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const Node node,
        OpenCuda(root, {.gpu_pool = MiB(1023), .extent = MiB(5)},
                 granularities));
    EXPECT_EQ(node.config.granularity, MiB(4));
    EXPECT_EQ(node.config.gpus[1].pool, MiB(1020));
    EXPECT_EQ(node.config.hosts[0].pool.size() % MiB(4).size(), 0u);
    EXPECT_EQ(node.config.extent.gpu, MiB(8));
    EXPECT_EQ(node.config.extent.host, MiB(8));
  }
}

TEST(CudaNode, TheNodeHasTheConfiguredLimits) {
  const TempDir root;
  Config config;
  config.principal_limits = {GiB(1), GiB(2)};
  config.job_limits = {GiB(3), GiB(4)};
  config.named_job_limits = {{"tune", {GiB(5), GiB(6)}}};
  config.user_weights = {{7, 2.5}};
  config.longest_wait = absl::Minutes(11);
  config.plan_time_limit = absl::Seconds(12);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node node, OpenCuda(root, config));
  EXPECT_EQ(node.config.driver, "cuda");
  EXPECT_FALSE(node.config.hostname.empty());
  EXPECT_EQ(node.config.own_uid, geteuid());
  EXPECT_EQ(node.config.principal_limits, config.principal_limits);
  EXPECT_EQ(node.config.job_limits, config.job_limits);
  EXPECT_EQ(node.config.named_job_limits, config.named_job_limits);
  EXPECT_EQ(node.config.user_weights, config.user_weights);
  EXPECT_EQ(node.config.wait_limits.longest, absl::Minutes(11));
  EXPECT_EQ(node.config.plan_time_limit, absl::Seconds(12));
}

TEST(CudaNode, APoolTooSmallForOneExtentIsRefused) {
  const TempDir root;
  EXPECT_THAT(OpenCuda(root, {.gpu_pool = MiB(3)}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("gpu_bytes in [pools] leaves a pool of 3 MiB, "
                                 "less than the 4 MiB")));
  EXPECT_THAT(OpenCuda(root, {.host_pool = KiB(64)}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("host_bytes in [pools] leaves a pool of")));
}

// Guards against a pool of half of the free memory. While jobs hold memory, the
// next daemon's pool would be smaller than their leases, and that daemon would
// refuse to serve.
TEST(CudaNode, TheHostPoolDoesNotDependOnMemoryInUse) {
  const TempDir root;
  WriteMemoryInfo(root, GiB(4), MiB(3800));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node first, OpenCuda(root));
  WriteMemoryInfo(root, GiB(4), MiB(1900));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node next, OpenCuda(root));
  EXPECT_EQ(first.config.hosts[0].pool, GiB(2) / first.config.hosts.size());
  EXPECT_EQ(next.config.hosts[0].pool, first.config.hosts[0].pool);
  EXPECT_EQ(next.config.extent.host, first.config.extent.host);
}

TEST(CudaNode, TheHostPoolRespectsTheCgroupsLimit) {
  for (const auto& [limit, memory] :
       {std::pair{GiB(1), GiB(1)}, std::pair{GiB(9), GiB(4)}}) {
    const TempDir root;
    WriteMemoryInfo(root, GiB(4), GiB(3));
    std::filesystem::create_directories(root.path() + "/proc/self");
    std::ofstream(root.path() + "/proc/self/cgroup") << "0::/\n";
    std::filesystem::create_directories(root.path() + "/sys/fs/cgroup");
    std::ofstream(root.path() + "/sys/fs/cgroup/memory.max")
        << limit.count() << "\n";
    SLUICE_ASSERT_OK_AND_ASSIGN(const Node node, OpenCuda(root));
    EXPECT_EQ(node.config.hosts[0].pool, memory / 2 / node.config.hosts.size());
  }
}

// The pool spares 1 GiB, or 6 % of a large GPU, for the driver and contexts.
TEST(CudaNode, AGpusPoolLeavesRoomForItsDriver) {
  for (const auto& [machine, memory, spare] :
       {std::tuple{"memory_mib=4096", GiB(4), GiB(1)},
        std::tuple{"memory_mib=65536", GiB(64), GiB(64) * 6 / 100}}) {
    const TempDir root;
    SLUICE_ASSERT_OK_AND_ASSIGN(const Node node, OpenCuda(root, {}, machine));
    const GpuConfig& gpu = node.config.gpus.at(0);
    EXPECT_LE(gpu.pool, memory - spare);
    EXPECT_GT(gpu.pool, memory - spare - MiB(600))
        << "the pool is rounded down to whole extents";
  }
}

TEST(SimNode, ASimulatedNodeHasTheConfiguredNumaNodes) {
  const TempDir root, run;
  Config config;
  config.driver = Config::DriverChoice::kSim;
  config.sim.gpus = 4;
  config.sim.numa_nodes = 2;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node node,
                              OpenNode(config, run.path(), root.path()));
  EXPECT_EQ(node.config.hosts.size(), 2u);
  ASSERT_EQ(node.config.gpus.size(), 4u);
  EXPECT_EQ(node.config.gpus[1].numa, NumaIndex(0));
  EXPECT_EQ(node.config.gpus[2].numa, NumaIndex(1));
  EXPECT_EQ(node.config.gpus[0].pool, config.sim.gpu_memory)
      << "a simulated GPU needs no spare memory";
}

TEST(CudaNode, AFallbackKindOfHostMemoryIsExplained) {
  const TempDir root;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node best, OpenCuda(root));
  EXPECT_THAT(best.config.warnings, IsEmpty());
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Node lesser,
      OpenCuda(root, {}, "gpus=2,memory_mib=4096,host_numa=0"));
  EXPECT_THAT(
      lesser.config.warnings,
      ElementsAre("host memory is of kind memfd, which every rank pins by "
                  "itself (the driver offers no HOST_NUMA memory)"));
}

TEST(CudaNode, ANumaNodeWithoutCoresIsLeftOutWithAWarning) {
  const TempDir root;
  WriteMemoryInfo(root, GiB(12), GiB(11));
  const std::string node = root.path() + "/sys/devices/system/node/node";
  for (const auto& [number, cores, gib] :
       {std::tuple("0", "0-3", 4), std::tuple("1", "", 8)}) {
    std::filesystem::create_directories(node + number);
    std::ofstream(node + number + "/cpulist") << cores << "\n";
    std::ofstream(node + number + "/meminfo")
        << "Node " << number << " MemTotal: " << (gib << 20) << " kB\n";
  }
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node found, OpenCuda(root));
  ASSERT_EQ(found.config.hosts.size(), 1u);
  EXPECT_EQ(found.config.hosts[0].pool, GiB(2));
  EXPECT_THAT(found.config.warnings,
              ElementsAre(AllOf(HasSubstr("NUMA node 1 has 8 GiB"),
                                EndsWith(": numactl -H"))));
}

TEST(CudaNode, HostMemoryIsAMemfdIfConfigured) {
  const TempDir root;
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Config config,
      ParseConfig("[device]\nhost_memory = \"memfd\"\n", "c.toml"));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node node, OpenCuda(root, config));
  EXPECT_EQ(node.driver->HostMemory().name, "memfd");
  EXPECT_EQ(node.driver->HostMemory().why, device::kToldSo);
}

// Guards against one lost GPU that keeps the daemon from serving the others.
TEST(CudaNode, OneLostGpuOfEightKeepsItsNumberAndTheOthersAreServed) {
  const TempDir root;
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Node node, OpenCuda(root, {}, "gpus=8,memory_mib=4096,lose=3"));
  ASSERT_EQ(node.config.gpus.size(), 8u);
  for (const GpuConfig& gpu : node.config.gpus) {
    EXPECT_EQ(gpu.pool, GiB(3));
    EXPECT_EQ(gpu.fault.empty(), gpu.index != DeviceIndex(3));
  }
  EXPECT_THAT(node.config.gpus[3].fault,
              AllOf(HasSubstr("GPU 3 does not answer (cuDeviceGet of GPU 3: "
                              "CUDA_ERROR_DEVICE_UNAVAILABLE"),
                    EndsWith(": nvidia-smi -q")));
  EXPECT_THAT(node.config.warnings,
              ElementsAre(EndsWith(node.config.gpus[3].fault)));
  Config config;  // limits the lost GPU's link
  config.cuda.links = {
      {.name = "pci-0000:3d:00.0", .h2d_bytes_per_second = 20e9}};
  EXPECT_THAT(OpenCuda(root, config, "gpus=8,memory_mib=4096,lose=3").status(),
              sluice::testing::IsOk());
  EXPECT_THAT(
      node.driver->Create(device::Placement::Gpu(DeviceIndex(3)),
                          node.config.granularity),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nvidia-smi -q")));
}

TEST(CudaNode, ExclusiveGpusAreRefusedWithTheCommandToRun) {
  const TempDir root;
  EXPECT_THAT(
      OpenCuda(root, {}, "compute_mode=3"),
      StatusIs(absl::StatusCode::kUnavailable,
               EndsWith(": sudo nvidia-smi -i "
                        "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00 -c 0")));
}

// Sets an environment variable while the object lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    setenv(name, value, 1);
  }
  Variable(const Variable&) = delete;
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

TEST(CudaNode, OnlyGpusInCudaVisibleDevicesAreServed) {
  constexpr char kFrom4On[] =
      "GPU-fafafafa-fafa-fafa-fafa-fafafafafa04,"
      "GPU-fafafafa-fafa-fafa-fafa-fafafafafa05,"
      "GPU-fafafafa-fafa-fafa-fafa-fafafafafa06,"
      "GPU-fafafafa-fafa-fafa-fafa-fafafafafa07";
  const TempDir root;
  for (const char* visible : {"4,5,6,7", kFrom4On}) {
    const Variable variable("CUDA_VISIBLE_DEVICES", visible);
    SLUICE_ASSERT_OK_AND_ASSIGN(const Node node,
                                OpenCuda(root, {}, "gpus=8,memory_mib=4096"));
    ASSERT_EQ(node.config.gpus.size(), 4u);
    EXPECT_THAT(node.config.gpus[0].uuid, EndsWith("04"));
    EXPECT_THAT(node.config.gpus[3].uuid, EndsWith("07"));
    EXPECT_THAT(node.config.warnings,
                ElementsAre(AllOf(HasSubstr(visible), HasSubstr("4 GPUs"),
                                  EndsWith(": unset CUDA_VISIBLE_DEVICES"))));
  }
  const Variable variable("CUDA_VISIBLE_DEVICES", "GPU-0");
  EXPECT_THAT(OpenCuda(root),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("CUDA_VISIBLE_DEVICES is 'GPU-0'"),
                             EndsWith(": nvidia-smi -L"))));
}

TEST(CudaNode, AMigInstanceIsAGpuWithItsOwnUuid) {
  constexpr char kInstances[] = "gpus=2,memory_mib=4096,mig=1";
  constexpr char kSecond[] = "MIG-fafafafa-fafa-fafa-fafa-fafafafafa01";
  const TempDir root;
  {
    SLUICE_ASSERT_OK_AND_ASSIGN(const Node node,
                                OpenCuda(root, {}, kInstances));
    ASSERT_EQ(node.config.gpus.size(), 1u);
    EXPECT_EQ(node.config.gpus[0].uuid,
              "MIG-fafafafa-fafa-fafa-fafa-fafafafafa00");
    EXPECT_THAT(node.config.warnings,
                ElementsAre(AllOf(HasSubstr(node.config.gpus[0].uuid),
                                  HasSubstr("CUDA_VISIBLE_DEVICES"),
                                  EndsWith(": nvidia-smi -L"))));
  }
  const Variable variable("CUDA_VISIBLE_DEVICES", kSecond);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node node, OpenCuda(root, {}, kInstances));
  ASSERT_EQ(node.config.gpus.size(), 1u);
  EXPECT_EQ(node.config.gpus[0].uuid, kSecond);
}

TEST(CudaNode, LinksAreReadFromSysfs) {
  const TempDir root;
  AddSwitch(root);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node node, OpenCuda(root));
  EXPECT_THAT(NamesAbove(node, 0),
              ElementsAre("pci-0000:3a:00.0", "pci-0000:38:00.0",
                          "root-0000:37", "numa1"));
  EXPECT_THAT(NamesAbove(node, 1),
              ElementsAre("pci-0000:3b:00.0", "pci-0000:38:00.0",
                          "root-0000:37", "numa1"));
  // Without a configured or measured speed no link is limited.
  for (const LinkSpeed& link : node.config.links) {
    EXPECT_FALSE(IsLimited(link)) << link.name;
  }
  EXPECT_THAT(node.description,
              HasSubstr("; links: GPU 0: pci-0000:3a:00.0 on pci-0000:38:00.0 "
                        "on root-0000:37 on numa1; GPU 1: pci-0000:3b:00.0"));
}

TEST(CudaNode, WithoutSysfsEachGpuHasALinkOfItsOwn) {
  const TempDir root;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node node, OpenCuda(root));
  EXPECT_THAT(NamesAbove(node, 0), ElementsAre("pci-0000:3a:00.0"));
  EXPECT_THAT(NamesAbove(node, 1), ElementsAre("pci-0000:3b:00.0"));
  EXPECT_THAT(node.description,
              HasSubstr("GPU 1: pci-0000:3b:00.0, not in sysfs"));
}

TEST(CudaNode, ALinkHasItsConfiguredLimits) {
  const TempDir root;
  AddSwitch(root);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Config config, ParseConfig(R"([cuda]
links = [{name = "pci-0000:38:00.0", h2d_bytes_per_s = 50e9, d2h_bytes_per_s = 48e9},
         {name = "numa1", both_bytes_per_s = 80e9}]
)",
                                                               "c.toml"));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node node, OpenCuda(root, config));
  const auto path = LinkPath(node.config.links, node.config.gpus[1].link);
  ASSERT_EQ(path.size(), 4u);
  EXPECT_FALSE(IsLimited(node.config.links[path[0]]));
  EXPECT_EQ(node.config.links[path[1]].h2d_bytes_per_second, 50e9);
  EXPECT_EQ(node.config.links[path[1]].d2h_bytes_per_second, 48e9);
  EXPECT_EQ(node.config.links[path[3]].both_bytes_per_second, 80e9);
  EXPECT_THAT(node.description,
              EndsWith("; limits: pci-0000:38:00.0 h2d 50.0 GB/s d2h 48.0 "
                       "GB/s, numa1 both 80.0 GB/s"));
  EXPECT_THAT(node.config.warnings, IsEmpty());
}

TEST(CudaNode, AnImpossibleLinkLimitIsRefused) {
  const TempDir root;
  AddSwitch(root);
  Config config;
  config.cuda.links = {{.name = "pcie0", .h2d_bytes_per_second = 1}};
  EXPECT_THAT(
      OpenCuda(root, config),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("[cuda] links: this machine has no link 'pcie0'; it "
                         "has pci-0000:3a:00.0, pci-")));
  config.cuda.links = {
      {.name = "pci-0000:38:00.0", .both_bytes_per_second = 60e9},
      {.name = "numa1", .h2d_bytes_per_second = 60e9}};
  EXPECT_THAT(OpenCuda(root, config),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("link pci-0000:38:00.0: it limits both "
                                 "directions together, but link numa1 above")));
}

}  // namespace
}  // namespace sluice::daemon
