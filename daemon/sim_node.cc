#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "daemon/bandwidth/topology.h"
#include "daemon/node.h"
#include "kernels/device/sim/sim.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

std::vector<LinkSpeed> SimLinks(const SimSettings& sim) {
  if (!sim.links.empty()) return sim.links;
  std::vector<LinkSpeed> links;
  links.reserve(static_cast<size_t>(sim.gpus));
  for (int i = 0; i < sim.gpus; ++i) {
    links.push_back({fmt::format("pcie{}", i), 2e9, 2e9});
  }
  return links;
}

device::SimConfig ToSim(const SimSettings& sim) {
  device::SimConfig to;
  const auto links = SimLinks(sim);
  for (const LinkSpeed& link : links) {
    to.links.push_back(
        {link.name, link.h2d_bytes_per_second, link.d2h_bytes_per_second});
  }
  for (int i = 0; i < sim.gpus; ++i) {
    const std::string link =
        sim.gpu_links.empty() ? links[i % links.size()].name : sim.gpu_links[i];
    to.gpus.push_back(
        {sim.gpu_memory, link, NumaIndex(i * sim.numa_nodes / sim.gpus)});
  }
  to.numa_nodes = sim.numa_nodes;
  to.host_memory = sim.host_memory;
  to.granularity = sim.granularity;
  return to;
}

std::vector<HolderSnapshot> FindHolders(const std::string& directory) {
  const auto found = device::FindSimHolders(directory);
  std::vector<HolderSnapshot> holders;
  if (!found.ok()) return holders;
  for (const device::SimHolder& each : *found) {
    // They keep duplicates of all descriptors for the next daemon.
    const bool keeps =
        (each.uid == 0 || each.uid == geteuid()) &&
        (each.command == "systemd" || each.command == "sluiced-keeper");
    if (keeps) continue;
    HolderSnapshot& holder = holders.emplace_back(
        HolderSnapshot{each.pid, each.uid, each.command, {}, {}});
    for (const auto& [where, size] : each.held) {
      const bool gpu = where.kind == device::Placement::Kind::kGpu;
      (gpu ? holder.gpu : holder.host) += size;
    }
  }
  return holders;
}

// The simulated device limits only each direction of a link. Limits of a parent
// link, or of both directions together, hold only through grants.
LinkSpeed SimLinkOf(const SimSettings& sim, const device::SimLink& of) {
  LinkSpeed link;
  for (const LinkSpeed& each : sim.links) {
    if (each.name == of.name) link = each;
  }
  link.name = of.name;
  link.h2d_bytes_per_second = of.h2d_bytes_per_second;
  link.d2h_bytes_per_second = of.d2h_bytes_per_second;
  return link;
}

}  // namespace

absl::Status OpenSim(const SimSettings& sim, const std::string& directory,
                     Node& node) {
  const absl::Status made = device::CreateSimNode(directory, ToSim(sim));
  // FailedPrecondition: ranks of an earlier daemon use the node.
  if (!absl::IsFailedPrecondition(made)) node.own_sim.Own(directory);
  if (!made.ok() && !absl::IsFailedPrecondition(made)) return made;
  // Ranks of every user open the files in it, whatever the umask is.
  if (chmod(directory.c_str(), 0755) != 0) {
    return ErrnoStatus(errno, "chmod " + directory);
  }
  SLUICE_ASSIGN_OR_RETURN(const auto opened, device::SimNode::Open(directory));
  SLUICE_ASSIGN_OR_RETURN(node.driver, device::OpenOwnedSimDriver(directory));
  const device::SimConfig config = opened->config();
  for (const device::SimLink& link : config.links) {
    node.config.links.push_back(SimLinkOf(sim, link));
  }
  // A node that was there before has the speeds of an earlier configuration.
  SLUICE_RETURN_IF_ERROR(bandwidth::Topology::Make(node.config.links).status());
  for (int i = 0; i < config.numa_nodes; ++i) {
    node.config.hosts.push_back(
        {NumaIndex(i), config.host_memory / config.numa_nodes});
  }
  node.sim_directory = directory;
  node.find_holders = [directory] { return FindHolders(directory); };
  SLUICE_ASSIGN_OR_RETURN(node.sim_clocks, device::MakeSimClocks());
  return absl::OkStatus();
}

}  // namespace sluice::daemon
