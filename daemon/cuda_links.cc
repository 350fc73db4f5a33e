#include "daemon/cuda_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/status/statusor.h"
#include "daemon/bandwidth/topology.h"
#include "kernels/device/driver.h"
#include "proto/base/ids.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

std::string AddPciLinks(const std::string& root, Node& node) {
  std::vector<std::string> addresses;
  for (const GpuConfig& gpu : node.config.gpus) {
    addresses.push_back(gpu.link.starts_with(device::kPciLink)
                            ? gpu.link.substr(std::strlen(device::kPciLink))
                            : "");
  }
  std::vector<LinkSpeed>& links = node.config.links;
  links = ReadPciLinks(addresses, root);
  std::string text;
  for (size_t i = 0; i < node.config.gpus.size(); ++i) {
    const std::string& own = node.config.gpus[i].link;
    text += fmt::format("{}GPU {}: {}", i == 0 ? "; links: " : "; ", i, own);
    const std::vector<size_t> path = LinkPath(links, own);
    for (const size_t link : path) {
      if (link != path[0]) text += " on " + links[link].name;
    }
    if (!path.empty()) continue;
    links.push_back({.name = own});
    text += ", not in sysfs";
  }
  return text;
}

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

absl::StatusOr<std::string> SetLinkSpeeds(const std::vector<LinkSpeed>& given,
                                          Node& node) {
  std::string text;
  const bool lacks_gpus = std::ranges::any_of(
      node.config.gpus,
      [](const GpuConfig& gpu) { return !gpu.fault.empty(); });
  for (const LinkSpeed& each : given) {
    const auto found = FindLink(node.config.links, each.name);
    // The path of a faulty GPU is unknown, so the link may be one of it.
    if (!found.ok() && lacks_gpus) {
      node.config.warnings.push_back(std::string(found.status().message()));
      continue;
    }
    SLUICE_RETURN_IF_ERROR(found.status());
    LinkSpeed* const link = *found;
    link->h2d_bytes_per_second = each.h2d_bytes_per_second;
    link->d2h_bytes_per_second = each.d2h_bytes_per_second;
    link->both_bytes_per_second = each.both_bytes_per_second;
    text += fmt::format("{}{}{}{}{}", text.empty() ? "; limits: " : ", ",
                        each.name, SpeedText("h2d", each.h2d_bytes_per_second),
                        SpeedText("d2h", each.d2h_bytes_per_second),
                        SpeedText("both", each.both_bytes_per_second));
  }
  SLUICE_RETURN_IF_ERROR(bandwidth::Topology::Make(node.config.links).status());
  return text;
}

constexpr const char* kBus = "/sys/bus/pci/devices/";

bool IsHex(const std::string& text, size_t least, size_t most) {
  return text.size() >= least && text.size() <= most &&
         std::ranges::all_of(
             text, [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// Accepts "0000:3a". Domains behind a volume manager have more than four
// digits.
bool IsBus(const std::string& name) {
  const size_t colon = name.find(':');
  return colon != std::string::npos && IsHex(name.substr(0, colon), 4, 8) &&
         IsHex(name.substr(colon + 1), 2, 2);
}

// Accepts "0000:3b:00.0".
bool IsAddress(const std::string& name) {
  const size_t colon = name.rfind(':');
  if (colon == std::string::npos || !IsBus(name.substr(0, colon))) return false;
  const std::string slot = name.substr(colon + 1);
  return slot.size() == 4 && IsHex(slot.substr(0, 2), 2, 2) && slot[2] == '.' &&
         slot[3] >= '0' && slot[3] <= '7';
}

std::optional<double> NumberIn(const std::filesystem::path& file) {
  std::ifstream in(file);
  double number = 0;
  if (!(in >> number) || !std::isfinite(number)) return std::nullopt;
  return number;
}

struct Chain {
  std::string root;  // "0000:3a"; empty: unknown
  std::vector<std::filesystem::path> devices;
};

Chain ChainOf(const std::string& address, const std::string& root) {
  std::error_code error;
  const std::filesystem::path device =
      std::filesystem::canonical(root + kBus + address, error);
  Chain chain;
  if (error || device.filename() != address) return chain;
  std::filesystem::path at = device;
  for (; IsAddress(at.filename()); at = at.parent_path()) {
    chain.devices.insert(chain.devices.begin(), at);
  }
  const std::string above = at.filename();
  if (above.starts_with("pci") && IsBus(above.substr(3))) {
    chain.root = above.substr(3);
  }
  return chain;
}

class PciReader {
 public:
  std::vector<LinkSpeed> Read(const std::vector<std::string>& addresses,
                              const std::string& root) {
    for (const std::string& address : addresses) Add(ChainOf(address, root));
    return std::move(made_);
  }

 private:
  void Add(const Chain& chain) {
    if (chain.devices.empty()) return;
    // From the GPU upwards, until a link is known: those above it are known
    // too.
    std::string below;
    const auto gpu = std::ssize(chain.devices) - 1;
    for (auto at = gpu; at >= 0; at -= 2) {
      // A bridge that is a device of the root complex has no link above it.
      if (at == 0 && at != gpu) break;
      if (!Hang("pci-" + chain.devices[at].filename().string(), below)) return;
    }
    if (!chain.root.empty() && !Hang("root-" + chain.root, below)) return;
    // -1: the kernel does not know.
    const auto numa = NumberIn(chain.devices.back() / "numa_node");
    if (numa && *numa >= 0 && *numa <= kMostNumaNodes) {
      Hang(fmt::format("numa{}", std::lround(*numa)), below);
    }
  }

  // Makes the link `name` the parent of `below`, and sets `below` to it.
  // Returns whether the link is new.
  bool Hang(std::string name, std::string& below) {
    const auto find = [this](const std::string& of) {
      return std::ranges::find(made_, of, &LinkSpeed::name);
    };
    const bool is_new = find(name) == made_.end();
    if (is_new) made_.push_back({.name = name});
    if (!below.empty()) find(below)->parent = name;
    below = std::move(name);
    return is_new;
  }

  static constexpr double kMostNumaNodes = 1023;
  std::vector<LinkSpeed> made_;
};

}  // namespace

absl::Status AddCudaLinks(const CudaSettings& cuda, const std::string& root,
                          Node& node) {
  node.description += AddPciLinks(root, node);
  SLUICE_ASSIGN_OR_RETURN(const std::string limits,
                          SetLinkSpeeds(cuda.links, node));
  node.description += limits;
  return absl::OkStatus();
}

std::vector<LinkSpeed> ReadPciLinks(const std::vector<std::string>& addresses,
                                    const std::string& root) {
  return PciReader().Read(addresses, root);
}

}  // namespace sluice::daemon
