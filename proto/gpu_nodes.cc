#include "proto/gpu_nodes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <utility>

namespace sluice::wire {
namespace {

// A device that is busy or is being reset is not waited for.
UniqueFd OpenNode(const std::string& path) {
  return UniqueFd(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
}

}  // namespace

std::vector<UniqueFd> OpenGpuNodes(const std::string& socket, DeviceIndex gpu) {
  std::vector<UniqueFd> nodes;
  const std::string sim =
      std::filesystem::path(socket).parent_path().string() + "/sim";
  struct stat info;
  if (stat(sim.c_str(), &info) == 0) {
    UniqueFd node = OpenNode(fmt::format("{}/gpu{}", sim, gpu.value()));
    if (node) nodes.push_back(std::move(node));
    return nodes;
  }
  for (size_t i = 0; i < kMaxShown; ++i) {
    UniqueFd node = OpenNode(fmt::format("/dev/nvidia{}", i));
    if (node) nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace sluice::wire
