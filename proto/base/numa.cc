#include "proto/base/numa.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace sluice {
namespace {

constexpr char kNodes[] = "/sys/devices/system/node";

// Parses a file with a list such as "0-3,8".
cpu_set_t ReadCores(const std::string& path) {
  std::ifstream file(path);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int first, last; file >> first; file.ignore(1, ',')) {
    last = first;
    if (file.peek() == '-') file.ignore(1) >> last;
    for (int core = first; core <= last && core < CPU_SETSIZE; ++core) {
      CPU_SET(core, &cores);
    }
  }
  return cores;
}

// Parses a file with a line such as "Node 1 MemTotal:  527988 kB".
Bytes ReadMemory(const std::string& path) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "MemTotal:" && file >> kib) return KiB(kib);
  }
  return Bytes(0);
}

}  // namespace

std::vector<NumaNode> ReadNumaNodes(const std::string& root) {
  std::vector<NumaNode> nodes;
  std::error_code error;
  for (std::filesystem::directory_iterator at(root + kNodes, error), end;
       !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    char* last = nullptr;
    const uint64_t number = name.starts_with("node")
                                ? std::strtoull(name.c_str() + 4, &last, 10)
                                : 0;
    if (last == nullptr || *last != '\0' || name.size() == 4) continue;
    const cpu_set_t cores = CoresOfNode(NumaIndex(number), root);
    nodes.push_back({number, ReadMemory(at->path().string() + "/meminfo"),
                     CPU_COUNT(&cores) > 0});
  }
  std::ranges::sort(nodes, {}, &NumaNode::number);
  return nodes;
}

cpu_set_t CoresOfNode(NumaIndex node, const std::string& root) {
  return ReadCores(
      fmt::format("{}{}/node{}/cpulist", root, kNodes, node.value()));
}

cpu_set_t CoresOfSocket(NumaIndex node, const std::string& root) {
  const cpu_set_t own = CoresOfNode(node, root);
  int first = 0;
  while (first < CPU_SETSIZE && !CPU_ISSET(first, &own)) ++first;
  const cpu_set_t all = ReadCores(
      fmt::format("{}/sys/devices/system/cpu/cpu{}/topology/core_siblings_list",
                  root, first));
  return CPU_COUNT(&all) > 0 ? all : own;
}

void StayOn(const cpu_set_t& cores) {
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0) return;
  CPU_AND(&mine, &mine, &cores);
  if (CPU_COUNT(&mine) > 0) sched_setaffinity(0, sizeof(mine), &mine);
}

}  // namespace sluice
