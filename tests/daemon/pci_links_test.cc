// Tests the links above a GPU, read from folders of files like those of sysfs.
#include <filesystem>
#include <fstream>

#include "daemon/bandwidth/topology.h"
#include "daemon/cuda_links.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A made-up /sys.
class Sysfs {
 public:
  // `path` is below /sys/devices, such as
  // "pci0000:3a/0000:3a:00.0/0000:3b:00.0".
  std::string Device(const std::string& path) {
    const std::filesystem::path folder = Folder(path);
    std::filesystem::create_directories(folder);
    std::filesystem::create_directories(Bus());
    const std::string address = folder.filename();
    std::filesystem::create_symlink("../../../devices/" + path,
                                    Bus() / address);
    return address;
  }
  std::string Device(const std::string& path, const std::string& numa) {
    const std::string address = Device(path);
    std::ofstream(Folder(path) / "numa_node") << numa << "\n";
    return address;
  }
  std::filesystem::path Folder(const std::string& path) const {
    return root() + "/sys/devices/" + path;
  }
  std::filesystem::path Bus() const { return root() + "/sys/bus/pci/devices"; }
  const std::string& root() const { return dir_.path(); }

 private:
  TempDir dir_;
};

std::vector<std::string> NamesAbove(const std::vector<LinkSpeed>& links,
                                    const std::string& address) {
  std::vector<std::string> names;
  for (const size_t i : LinkPath(links, "pci-" + address)) {
    names.push_back(links[i].name);
  }
  return names;
}

// Two sockets with two switches each; behind each switch are two GPUs and a
// network card.
TEST(PciLinks, EightGpusBehindFourSwitchesShareThemInPairs) {
  Sysfs sysfs;
  std::vector<std::string> gpus;
  for (const std::string bus : {"1", "4", "9", "c"}) {
    const std::string numa = bus < "9" ? "0" : "1";
    const std::string port = "pci0000:" + bus + "0/0000:" + bus + "0:01.0";
    const std::string up = port + "/0000:" + bus + "1:00.0";
    sysfs.Device(port, numa);
    sysfs.Device(up, numa);
    for (const std::string slot : {"0", "1", "2"}) {
      const std::string down = up + "/0000:" + bus + "2:0" + slot + ".0";
      sysfs.Device(down, numa);
      const std::string address = sysfs.Device(
          down + "/0000:" + bus + std::to_string(3 + slot[0] - '0') + ":00.0",
          numa);
      if (slot != "2") gpus.push_back(address);
    }
  }
  const std::vector<LinkSpeed> links = ReadPciLinks(gpus, sysfs.root());
  EXPECT_EQ(links.size(), 8u + 4 + 4 + 2);
  EXPECT_THAT(NamesAbove(links, gpus[0]),
              ElementsAre("pci-0000:13:00.0", "pci-0000:11:00.0",
                          "root-0000:10", "numa0"));
  EXPECT_THAT(NamesAbove(links, gpus[1]),
              ElementsAre("pci-0000:14:00.0", "pci-0000:11:00.0",
                          "root-0000:10", "numa0"));
  EXPECT_THAT(NamesAbove(links, gpus[7]),
              ElementsAre("pci-0000:c4:00.0", "pci-0000:c1:00.0",
                          "root-0000:c0", "numa1"));
  EXPECT_THAT(bandwidth::Topology::Make(links), sluice::testing::IsOk());
}

// One switch is below another, as when a GPU card has a switch of its own.
TEST(PciLinks, EachSwitchOfASeriesIsALink) {
  Sysfs sysfs;
  std::string path = "pci0000:00";
  for (const char* address : {"0000:00:01.0", "0000:01:00.0", "0000:02:00.0",
                              "0000:03:00.0", "0000:04:08.0"}) {
    path += std::string("/") + address;
    sysfs.Device(path);
  }
  const std::string gpu = sysfs.Device(path + "/0000:05:00.0", "0");
  EXPECT_THAT(NamesAbove(ReadPciLinks({gpu}, sysfs.root()), gpu),
              ElementsAre("pci-0000:05:00.0", "pci-0000:03:00.0",
                          "pci-0000:01:00.0", "root-0000:00", "numa0"));
}

TEST(PciLinks, AVirtualMachinesGpusHaveNoBridgeAndShareTheRoot) {
  Sysfs sysfs;
  const std::string a = sysfs.Device("pci0000:00/0000:00:05.0", "0");
  const std::string b = sysfs.Device("pci0000:00/0000:00:06.0", "-1");
  const std::vector<LinkSpeed> links = ReadPciLinks({a, b}, sysfs.root());
  EXPECT_THAT(NamesAbove(links, a),
              ElementsAre("pci-0000:00:05.0", "root-0000:00", "numa0"));
  EXPECT_THAT(NamesAbove(links, b),
              ElementsAre("pci-0000:00:06.0", "root-0000:00", "numa0"));
  for (const LinkSpeed& link : links) EXPECT_FALSE(IsLimited(link));
}

// A path of three devices: the uppermost belongs to the root complex, and only
// pairs of bridges below it are links.
TEST(PciLinks, ABridgeOfTheRootComplexIsNoLink) {
  Sysfs sysfs;
  const std::string bridge = "pci0000:00/0000:00:1e.0";
  sysfs.Device(bridge);
  sysfs.Device(bridge + "/0000:01:01.0");
  const std::string gpu =
      sysfs.Device(bridge + "/0000:01:01.0/0000:02:00.0", "0");
  EXPECT_THAT(NamesAbove(ReadPciLinks({gpu}, sysfs.root()), gpu),
              ElementsAre("pci-0000:02:00.0", "root-0000:00", "numa0"));
}

TEST(PciLinks, MissingFilesAreSkipped) {
  Sysfs sysfs;
  sysfs.Device("pci0000:3a/0000:3a:00.0");
  const std::string gpu = sysfs.Device("pci0000:3a/0000:3a:00.0/0000:3b:00.0");
  EXPECT_THAT(NamesAbove(ReadPciLinks({gpu}, sysfs.root()), gpu),
              ElementsAre("pci-0000:3b:00.0", "root-0000:3a"));
  EXPECT_THAT(ReadPciLinks({"0000:99:00.0", "", "../../etc", "0000:3B:00.0"},
                           sysfs.root()),
              IsEmpty());
  EXPECT_THAT(ReadPciLinks({gpu}, sysfs.root() + "/no"), IsEmpty());
}

TEST(PciLinks, OddFilesAndSymlinksAreNoLinks) {
  Sysfs sysfs;
  // Symlinks to a folder that is no device of the bus, to itself, to another
  // device, and to nothing.
  const std::string real =
      sysfs.Device("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "1e9");
  std::filesystem::create_directories(sysfs.Folder("virtual/thing"));
  std::filesystem::create_symlink("../../../devices/virtual/thing",
                                  sysfs.Bus() / "0000:50:00.0");
  std::filesystem::create_symlink("0000:51:00.0", sysfs.Bus() / "0000:51:00.0");
  std::filesystem::create_symlink(
      "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0",
      sysfs.Bus() / "0000:52:00.0");
  std::filesystem::create_symlink("nowhere", sysfs.Bus() / "0000:53:00.0");
  // This device is no symlink, so the devices above it are unknown.
  std::filesystem::create_directories(sysfs.Bus() / "0000:54:00.0");
  const std::vector<LinkSpeed> links =
      ReadPciLinks({"0000:50:00.0", "0000:51:00.0", "0000:52:00.0",
                    "0000:53:00.0", "0000:54:00.0", real},
                   sysfs.root());
  ASSERT_EQ(links.size(), 3u);
  EXPECT_THAT(NamesAbove(links, "0000:54:00.0"),
              ElementsAre("pci-0000:54:00.0"));
  EXPECT_THAT(NamesAbove(links, real),
              ElementsAre("pci-0000:3b:00.0", "root-0000:3a"));
}

// PCI domains of volume management devices and of ARM machines are below a
// platform's folder. Two parts of one GPU have the same address.
TEST(PciLinks, LongDomainsAndPartsOfOneGpuAreRead) {
  Sysfs sysfs;
  const std::string gpu = sysfs.Device(
      "LNXSYSTM:00/LNXSYBUS:00/PNP0A08:00/pci10009:00/10009:00:00.0/"
      "10009:01:00.0",
      "1");
  const std::vector<LinkSpeed> links = ReadPciLinks({gpu, gpu}, sysfs.root());
  EXPECT_EQ(links.size(), 3u);
  EXPECT_THAT(NamesAbove(links, gpu),
              ElementsAre("pci-10009:01:00.0", "root-10009:00", "numa1"));
}

}  // namespace
}  // namespace sluice::daemon
