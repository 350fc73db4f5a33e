#include "daemon/cuda_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/node/links.h"
#include "daemon/pci_links.h"
#include "kernels/device/driver.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// Adds the links of a node on cuda, without speeds. Returns one line that names
// the links above each GPU.
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

// Formats "h2d 24.9 GB/s"; empty if not limited.
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

// Sets the configured speeds. Returns one line that names the limits.
absl::StatusOr<std::string> SetLinkSpeeds(const std::vector<LinkSpeed>& given,
                                          Node& node) {
  std::string text;
  const bool lacks_gpus = std::ranges::any_of(
      node.config.gpus,
      [](const GpuConfig& gpu) { return !gpu.fault.empty(); });
  for (const LinkSpeed& each : given) {
    const auto found = FindLink(node.config.links, each.name);
    // It may be a link of a faulty GPU, since the path of such a GPU is
    // unknown.
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
  SLUICE_RETURN_IF_ERROR(TopologyOf(node.config.links).status());
  return text;
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

}  // namespace sluice::daemon
