// What lies above a GPU, on folders of files as sysfs has them.
#include "daemon/pci_links.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using bandwidth::LinkKind;
using ::sluice::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

constexpr double kGen5x16 = 32e9 / 8 * 128 / 130 * 16;
constexpr double kGen4x16 = 16e9 / 8 * 128 / 130 * 16;

// A /sys of its own.
class Sysfs {
 public:
  // `path`: below /sys/devices, "pci0000:3a/0000:3a:00.0/0000:3b:00.0".
  std::string Device(const std::string& path) {
    const std::filesystem::path folder = Folder(path);
    std::filesystem::create_directories(folder);
    std::filesystem::create_directories(Bus());
    const std::string address = folder.filename();
    std::filesystem::create_symlink("../../../devices/" + path,
                                    Bus() / address);
    return address;
  }
  std::string Device(const std::string& path, const std::string& speed,
                     const std::string& width, const std::string& numa = "0") {
    const std::string address = Device(path);
    for (const char* which : {"current", "max"}) {
      Write(path, std::string(which) + "_link_speed", speed);
      Write(path, std::string(which) + "_link_width", width);
    }
    Write(path, "numa_node", numa);
    return address;
  }
  void Write(const std::string& path, const std::string& file,
             const std::string& text) {
    std::ofstream(Folder(path) / file) << text << "\n";
  }
  std::filesystem::path Folder(const std::string& path) const {
    return root() + "/sys/devices/" + path;
  }
  std::filesystem::path Bus() const { return root() + "/sys/bus/pci/devices"; }
  const std::string& root() const { return dir_.path(); }

 private:
  TempDir dir_;
};

std::vector<std::string> NamesAbove(const PciTopology& topology, size_t gpu) {
  std::vector<std::string> names;
  for (std::optional<int> at = topology.of_gpu.at(gpu); at;
       at = topology.links[*at].link.parent) {
    names.push_back(topology.links[*at].link.name);
  }
  return names;
}

bandwidth::Topology Made(const PciTopology& topology) {
  std::vector<bandwidth::Link> links;
  for (const PciLink& each : topology.links) links.push_back(each.link);
  auto made = bandwidth::Topology::Make(links);
  EXPECT_THAT(made, sluice::testing::IsOk());
  return *std::move(made);
}

TEST(RatedPcieSpeed, IsTheLanesLessTheEncoding) {
  EXPECT_DOUBLE_EQ(RatedPcieSpeed(2.5, 1), 250e6);
  EXPECT_DOUBLE_EQ(RatedPcieSpeed(5, 16), 8e9);
  EXPECT_NEAR(RatedPcieSpeed(8, 16), 15.75e9, 1e7);
  EXPECT_NEAR(RatedPcieSpeed(16, 16), 31.5e9, 1e7);
  EXPECT_NEAR(RatedPcieSpeed(32, 16), 63.0e9, 2e7);
  EXPECT_NEAR(RatedPcieSpeed(64, 16), 121e9, 1e7);
  EXPECT_EQ(RatedPcieSpeed(0, 16), 0);
  EXPECT_EQ(RatedPcieSpeed(32, 0), 0);
  EXPECT_EQ(RatedPcieSpeed(128, 16), 0);  // not known here
}

// Two sockets, on each two switches, behind each two GPUs and a network card.
TEST(PciLinks, EightGpusBehindFourSwitchesShareThemInPairs) {
  Sysfs sysfs;
  std::vector<std::string> gpus;
  const std::string kSpeed = "32.0 GT/s PCIe";
  for (const std::string bus : {"1", "4", "9", "c"}) {
    const std::string numa = bus < "9" ? "0" : "1";
    const std::string port = "pci0000:" + bus + "0/0000:" + bus + "0:01.0";
    const std::string up = port + "/0000:" + bus + "1:00.0";
    sysfs.Device(port, kSpeed, "16", numa);
    sysfs.Device(up, kSpeed, "16", numa);
    for (const std::string slot : {"0", "1", "2"}) {
      const std::string down = up + "/0000:" + bus + "2:0" + slot + ".0";
      sysfs.Device(down, kSpeed, "16", numa);
      const std::string address = sysfs.Device(
          down + "/0000:" + bus + std::to_string(3 + slot[0] - '0') + ":00.0",
          kSpeed, "16", numa);
      if (slot != "2") gpus.push_back(address);
    }
  }
  const PciTopology topology = ReadPciTopology(gpus, sysfs.root());
  ASSERT_EQ(topology.of_gpu.size(), 8u);
  EXPECT_EQ(topology.links.size(), 8u + 4 + 4 + 2);
  EXPECT_THAT(NamesAbove(topology, 0),
              ElementsAre("pci-0000:13:00.0", "pci-0000:11:00.0",
                          "root-0000:10", "numa0"));
  EXPECT_THAT(NamesAbove(topology, 1),
              ElementsAre("pci-0000:14:00.0", "pci-0000:11:00.0",
                          "root-0000:10", "numa0"));
  EXPECT_THAT(NamesAbove(topology, 7),
              ElementsAre("pci-0000:c4:00.0", "pci-0000:c1:00.0",
                          "root-0000:c0", "numa1"));
  std::vector<LinkKind> kinds;
  for (std::optional<int> at = topology.of_gpu[0]; at;
       at = topology.links[*at].link.parent) {
    kinds.push_back(topology.links[*at].link.kind);
  }
  EXPECT_THAT(kinds, ElementsAre(LinkKind::kGpu, LinkKind::kSwitch,
                                 LinkKind::kRoot, LinkKind::kNuma));
  const bandwidth::Topology made = Made(topology);
  const auto path = made.PathOf(made.channel_of(*topology.of_gpu[2], 0));
  ASSERT_EQ(path.size(), 4u);
  EXPECT_DOUBLE_EQ(made.channels()[path[0]].capacity, kGen5x16);
  EXPECT_EQ(made.channels()[path[1]].name, "pci-0000:41:00.0 h2d");
  EXPECT_DOUBLE_EQ(made.channels()[path[1]].capacity, kGen5x16);
  EXPECT_EQ(made.channels()[path[2]].capacity, bandwidth::kUnlimited);
  EXPECT_EQ(PathText(topology, *topology.of_gpu[0]),
            "pci-0000:13:00.0 (32 GT/s x16, rated 63.0 GB/s) on "
            "pci-0000:11:00.0 (32 GT/s x16, rated 63.0 GB/s) on root-0000:10 "
            "on numa0");
}

// A switch below a switch, such as a GPU card with one of its own.
TEST(PciLinks, EachSwitchOfARowIsALink) {
  Sysfs sysfs;
  std::string path = "pci0000:00";
  for (const char* address : {"0000:00:01.0", "0000:01:00.0", "0000:02:00.0",
                              "0000:03:00.0", "0000:04:08.0"}) {
    path += std::string("/") + address;
    sysfs.Device(path, "16.0 GT/s PCIe", "16");
  }
  const std::string gpu =
      sysfs.Device(path + "/0000:05:00.0", "8.0 GT/s PCIe", "16");
  EXPECT_THAT(NamesAbove(ReadPciTopology({gpu}, sysfs.root()), 0),
              ElementsAre("pci-0000:05:00.0", "pci-0000:03:00.0",
                          "pci-0000:01:00.0", "root-0000:00", "numa0"));
}

// One GPU in the processor's port. It has nothing to do, so its link runs at
// 2.5 GT/s; the board gives it 8 of its 16 lanes. The kernel knows no NUMA.
TEST(PciLinks, ADesktopsIdleGpuIsRatedAtWhatBothEndsCouldDo) {
  Sysfs sysfs;
  const std::string port = "pci0000:00/0000:00:01.0";
  const std::string gpu = port + "/0000:01:00.0";
  sysfs.Device(port, "16.0 GT/s PCIe", "16", "-1");
  sysfs.Write(port, "current_link_speed", "2.5 GT/s PCIe");
  sysfs.Write(port, "current_link_width", "8");
  const std::string address = sysfs.Device(gpu, "32.0 GT/s PCIe", "16", "-1");
  sysfs.Write(gpu, "current_link_speed", "2.5 GT/s PCIe");
  sysfs.Write(gpu, "current_link_width", "8");
  const PciTopology topology = ReadPciTopology({address}, sysfs.root());
  EXPECT_THAT(NamesAbove(topology, 0),
              ElementsAre("pci-0000:01:00.0", "root-0000:00"));
  EXPECT_DOUBLE_EQ(topology.links[0].link.h2d, kGen4x16 / 2);
  EXPECT_DOUBLE_EQ(topology.links[0].link.d2h, kGen4x16 / 2);
  EXPECT_EQ(PathText(topology, 0),
            "pci-0000:01:00.0 (16 GT/s x8 of x16, rated 15.8 GB/s) on "
            "root-0000:00");
}

TEST(PciLinks, AVirtualMachinesGpusHaveNoBridgeAndShareTheRoot) {
  Sysfs sysfs;
  const std::string a = sysfs.Device("pci0000:00/0000:00:05.0", "Unknown", "0");
  const std::string b =
      sysfs.Device("pci0000:00/0000:00:06.0", "Unknown speed", "255", "-1");
  const PciTopology topology = ReadPciTopology({a, b}, sysfs.root());
  EXPECT_THAT(NamesAbove(topology, 0),
              ElementsAre("pci-0000:00:05.0", "root-0000:00", "numa0"));
  EXPECT_THAT(NamesAbove(topology, 1),
              ElementsAre("pci-0000:00:06.0", "root-0000:00", "numa0"));
  for (const PciLink& link : topology.links) EXPECT_EQ(link.link.h2d, 0);
  EXPECT_EQ(PathText(topology, 0), "pci-0000:00:05.0 on root-0000:00 on numa0");
}

// The uppermost of three devices is the root complex's: no link is above it.
TEST(PciLinks, ABridgeOfTheRootComplexIsNoLink) {
  Sysfs sysfs;
  const std::string bridge = "pci0000:00/0000:00:1e.0";
  sysfs.Device(bridge, "16.0 GT/s PCIe", "16");
  sysfs.Device(bridge + "/0000:01:01.0");
  const std::string gpu =
      sysfs.Device(bridge + "/0000:01:01.0/0000:02:00.0", "5 GT/s", "4");
  const PciTopology topology = ReadPciTopology({gpu}, sysfs.root());
  EXPECT_THAT(NamesAbove(topology, 0),
              ElementsAre("pci-0000:02:00.0", "root-0000:00", "numa0"));
  EXPECT_DOUBLE_EQ(topology.links[0].link.h2d, 2e9);
}

TEST(PciLinks, WhatIsMissingIsLeftOut) {
  Sysfs sysfs;
  sysfs.Device("pci0000:3a/0000:3a:00.0");
  const std::string gpu = sysfs.Device("pci0000:3a/0000:3a:00.0/0000:3b:00.0");
  const PciTopology bare = ReadPciTopology({gpu}, sysfs.root());
  EXPECT_THAT(NamesAbove(bare, 0),
              ElementsAre("pci-0000:3b:00.0", "root-0000:3a"));
  EXPECT_EQ(bare.links[0].link.h2d, 0);
  // Kernels before 4.13 had these two only.
  sysfs.Write("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "current_link_speed",
              "8 GT/s");
  sysfs.Write("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "current_link_width",
              "16");
  EXPECT_DOUBLE_EQ(ReadPciTopology({gpu}, sysfs.root()).links[0].link.h2d,
                   kGen4x16 / 2);
  const PciTopology none = ReadPciTopology(
      {"0000:99:00.0", "", "../../etc", "0000:3B:00.0"}, sysfs.root());
  EXPECT_THAT(none.links, IsEmpty());
  EXPECT_THAT(none.of_gpu, ElementsAre(std::nullopt, std::nullopt, std::nullopt,
                                       std::nullopt));
  EXPECT_THAT(ReadPciTopology({gpu}, sysfs.root() + "/no").links, IsEmpty());
}

TEST(PciLinks, OddFilesAndSymlinksAreNoLinks) {
  Sysfs sysfs;
  // Symlinks to a folder that is no device of the bus, to itself, and to
  // another.
  const std::string real =
      sysfs.Device("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "nan", "-16", "1e9");
  std::filesystem::create_directories(sysfs.Folder("virtual/thing"));
  std::filesystem::create_symlink("../../../devices/virtual/thing",
                                  sysfs.Bus() / "0000:50:00.0");
  std::filesystem::create_symlink("0000:51:00.0", sysfs.Bus() / "0000:51:00.0");
  std::filesystem::create_symlink(
      "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0",
      sysfs.Bus() / "0000:52:00.0");
  std::filesystem::create_symlink("nowhere", sysfs.Bus() / "0000:53:00.0");
  // No symlink at all: what is above it is not known.
  std::filesystem::create_directories(sysfs.Bus() / "0000:54:00.0");
  const PciTopology topology =
      ReadPciTopology({"0000:50:00.0", "0000:51:00.0", "0000:52:00.0",
                       "0000:53:00.0", "0000:54:00.0", real},
                      sysfs.root());
  EXPECT_THAT(topology.of_gpu,
              ElementsAre(std::nullopt, std::nullopt, std::nullopt,
                          std::nullopt, Optional(0), Optional(1)));
  EXPECT_THAT(NamesAbove(topology, 4), ElementsAre("pci-0000:54:00.0"));
  EXPECT_THAT(NamesAbove(topology, 5),
              ElementsAre("pci-0000:3b:00.0", "root-0000:3a"));
  EXPECT_EQ(topology.links[1].link.h2d, 0);
}

// Domains of volume managers and of ARM machines, below a platform's folder;
// and two parts of one GPU, which have one address.
TEST(PciLinks, LongDomainsAndPartsOfOneGpuAreKnown) {
  Sysfs sysfs;
  const std::string gpu = sysfs.Device(
      "LNXSYSTM:00/LNXSYBUS:00/PNP0A08:00/pci10009:00/10009:00:00.0/"
      "10009:01:00.0",
      "32.0 GT/s PCIe", "16", "1");
  const PciTopology topology = ReadPciTopology({gpu, gpu}, sysfs.root());
  EXPECT_THAT(topology.of_gpu, ElementsAre(Optional(0), Optional(0)));
  EXPECT_THAT(NamesAbove(topology, 1),
              ElementsAre("pci-10009:01:00.0", "root-10009:00", "numa1"));
}

}  // namespace
}  // namespace sluice::daemon
