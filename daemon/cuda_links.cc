#include "daemon/cuda_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <regex>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "daemon/bandwidth/topology.h"
#include "kernels/device/driver.h"
#include "proto/base/file_text.h"
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

absl::StatusOr<std::string> SetLinkSpeeds(const std::vector<LinkSpeed>& given,
                                          Node& node) {
  std::string text;
  std::vector<LinkSpeed>& links = node.config.links;
  const bool lacks_gpus = std::ranges::any_of(
      node.config.gpus,
      [](const GpuConfig& gpu) { return !gpu.fault.empty(); });
  for (const LinkSpeed& each : given) {
    const auto link = std::ranges::find(links, each.name, &LinkSpeed::name);
    if (link == links.end()) {
      const std::string fault = fmt::format(
          "[cuda] links: this machine has no link '{}'; it has {}", each.name,
          absl::StrJoin(links, ", ", [](auto* out, const LinkSpeed& of) {
            *out += of.name;
          }));
      // The path of a faulty GPU is unknown, so the link may be on it.
      if (!lacks_gpus) return absl::InvalidArgumentError(fault);
      node.config.warnings.push_back(fault);
      continue;
    }
    link->h2d_bytes_per_second = each.h2d_bytes_per_second;
    link->d2h_bytes_per_second = each.d2h_bytes_per_second;
    link->both_bytes_per_second = each.both_bytes_per_second;
    text += fmt::format("{}{}{}{}{}", text.empty() ? "; limits: " : ", ",
                        each.name, SpeedText("h2d", each.h2d_bytes_per_second),
                        SpeedText("d2h", each.d2h_bytes_per_second),
                        SpeedText("both", each.both_bytes_per_second));
  }
  SLUICE_RETURN_IF_ERROR(bandwidth::Topology::Make(links).status());
  return text;
}

// Accepts "0000:3a". Domains behind a volume management device (VMD) have more
// than four digits.
bool IsBus(const std::string& name) {
  static const std::regex bus("[[:xdigit:]]{4,8}:[[:xdigit:]]{2}");
  return std::regex_match(name, bus);
}

// Accepts "0000:3b:00.0".
bool IsAddress(const std::string& name) {
  static const std::regex device(":[[:xdigit:]]{2}[.][0-7]");
  const size_t colon = name.rfind(':');
  return colon != name.npos && IsBus(name.substr(0, colon)) &&
         std::regex_match(name.substr(colon), device);
}

// Makes the link `name` the parent of the link `below`, and sets `below` to
// `name`. Returns whether the link `name` is new.
bool Hang(std::string name, std::string& below, std::vector<LinkSpeed>& links) {
  const auto find = [&](const std::string& of) {
    return std::ranges::find(links, of, &LinkSpeed::name);
  };
  const bool is_new = find(name) == links.end();
  if (is_new) links.push_back({.name = name});
  if (!below.empty()) find(below)->parent = name;
  below = std::move(name);
  return is_new;
}

// Adds the links from the GPU upwards to `links`. Stops at a link that is there
// already, because the links above it are there too.
void AddChain(const std::string& address, const std::string& root,
              std::vector<LinkSpeed>& links) {
  std::error_code error;
  const std::filesystem::path gpu = std::filesystem::canonical(
      root + "/sys/bus/pci/devices/" + address, error);
  if (error || gpu.filename() != address) return;
  std::vector<std::string> chain;
  std::filesystem::path at = gpu;
  for (; IsAddress(at.filename()); at = at.parent_path()) {
    chain.push_back(at.filename());
  }
  if (chain.empty()) return;
  std::string below;
  for (size_t i = 0; i < chain.size(); i += 2) {
    // A bridge that is a device of the root complex has no link above it.
    if (i > 0 && i == chain.size() - 1) break;
    if (!Hang("pci-" + chain[i], below, links)) return;
  }
  const std::string above = at.filename();
  if (above.starts_with("pci") && IsBus(above.substr(3)) &&
      !Hang("root-" + above.substr(3), below, links)) {
    return;
  }
  constexpr int kMostNumaNodes = 1023;
  int numa = -1;  // what the kernel writes if it does not know the node
  if (absl::SimpleAtoi(TextOf(gpu / "numa_node"), &numa) && numa >= 0 &&
      numa <= kMostNumaNodes) {
    Hang(fmt::format("numa{}", numa), below, links);
  }
}

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
  std::vector<LinkSpeed> links;
  for (const std::string& address : addresses) AddChain(address, root, links);
  return links;
}

}  // namespace sluice::daemon
