// Tests the detection of NVIDIA GPUs, and what driver `auto` does about them.
#include "kernels/device/cuda/nvidia.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/node.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using device::FindNvidiaDevice;
using device::NvidiaDeviceNode;

using sluice::testing::StatusIs;
using sluice::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void Write(const TempDir& root, const std::string& path,
           const std::string& text = "") {
  const std::filesystem::path file(root.path() + path);
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

void AddPciDevice(const TempDir& root, const std::string& name,
                  const std::string& vendor, const std::string& kind) {
  const std::string folder = "/sys/bus/pci/devices/" + name;
  Write(root, folder + "/vendor", vendor + "\n");
  Write(root, folder + "/class", kind + "\n");
}

TEST(NvidiaDevice, AGpuIsFoundByItsFilesOrOnThePciBus) {
  const TempDir files, loaded, bus;
  Write(files, "/dev/nvidiactl");
  Write(files, "/dev/null");
  EXPECT_EQ(FindNvidiaDevice(files.path()), "/dev/nvidiactl");
  Write(loaded, "/proc/driver/nvidia/version", "NVRM version: 580\n");
  EXPECT_EQ(FindNvidiaDevice(loaded.path()), "/proc/driver/nvidia");
  // The kernel module is not loaded, so only the PCI bus shows the GPU.
  AddPciDevice(bus, "0000:3b:00.0", "0x10de", "0x030200");
  EXPECT_EQ(FindNvidiaDevice(bus.path()), "PCI device 0000:3b:00.0");
}

TEST(NvidiaDevice, AGpusDeviceNodeIsFoundByItsUuid) {
  const TempDir root;
  const auto add = [&](const std::string& bus, const std::string& uuid,
                       const std::string& minor) {
    Write(root, "/proc/driver/nvidia/gpus/" + bus + "/information",
          "Model: \t\t NVIDIA H100\nGPU UUID: \t " + uuid +
              "\nDevice Minor: \t " + minor + "\n");
  };
  add("0000:3b:00.0", "GPU-a", "1");
  add("0000:5e:00.0", "GPU-b", "0");
  EXPECT_EQ(NvidiaDeviceNode("GPU-a", root.path()), "/dev/nvidia1");
  EXPECT_EQ(NvidiaDeviceNode("GPU-b", root.path()), "/dev/nvidia0");
  EXPECT_EQ(NvidiaDeviceNode("GPU-c", root.path()), "");
}

TEST(NvidiaDevice, OtherDevicesAndAGpusAudioFunctionAreNoGpu) {
  const TempDir root;
  EXPECT_EQ(FindNvidiaDevice(root.path()), "");
  AddPciDevice(root, "0000:00:02.0", "0x8086", "0x030000");
  AddPciDevice(root, "0000:3b:00.1", "0x10de", "0x040300");
  Write(root, "/dev/nvram");
  EXPECT_EQ(FindNvidiaDevice(root.path()), "");
}

absl::StatusOr<Node> OpenAuto(const TempDir& run, const TempDir& root) {
  return OpenNode(Config(), run.path(), root.path());
}

// Guards against simulating GPUs silently because a driver is broken.
TEST(DriverAuto, AutoIsRefusedIfAGpuHasNoWorkingDriver) {
  if (device::OpenCudaDriver().ok()) GTEST_SKIP() << "its driver works";
  const TempDir run, root;
  Write(root, "/dev/nvidia0");
  EXPECT_THAT(OpenAuto(run, root),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("an NVIDIA GPU (/dev/nvidia0), but its "
                                       "driver cannot be used: "),
                             HasSubstr("sluiced --driver sim"))));
  EXPECT_TRUE(std::filesystem::is_empty(run.path()));
}

TEST(DriverAuto, AutoSimulatesWithAWarningIfThereIsNoGpu) {
  if (device::OpenCudaDriver().ok()) GTEST_SKIP() << "its driver works";
  const TempDir run, root;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node node, OpenAuto(run, root));
  EXPECT_EQ(node.config.driver, "sim");
  EXPECT_THAT(node.config.warnings,
              ElementsAre(HasSubstr("GPUs are simulated")));
}

TEST(DriverSim, SimIsUsedEvenIfAGpusDriverIsBroken) {
  const TempDir run, root;
  Write(root, "/dev/nvidia0");
  Config config;
  config.driver = Config::DriverChoice::kSim;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Node node,
                              OpenNode(config, run.path(), root.path()));
  EXPECT_EQ(node.config.driver, "sim");
  EXPECT_THAT(node.config.warnings, IsEmpty());
}

}  // namespace
}  // namespace sluice::daemon
