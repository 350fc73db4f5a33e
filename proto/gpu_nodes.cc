#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <utility>

#include "proto/wire.h"

namespace sluice::wire {

std::vector<UniqueFd> OpenGpuNodes(const std::string& socket, DeviceIndex gpu,
                                   const std::string& node) {
  std::vector<UniqueFd> nodes;
  const auto add = [&nodes](const std::string& path) {
    // With O_NONBLOCK, open does not wait for a busy device or its reset.
    UniqueFd fd(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (fd) nodes.push_back(std::move(fd));
  };
  const std::string sim =
      std::filesystem::path(socket).parent_path().string() + "/sim";
  struct stat info;
  if (stat(sim.c_str(), &info) == 0) {
    add(fmt::format("{}/gpu{}", sim, gpu.value()));
  } else if (!node.empty()) {
    add(node);
  } else {
    for (size_t i = 0; i < kMaxShown; ++i) add(fmt::format("/dev/nvidia{}", i));
  }
  return nodes;
}

}  // namespace sluice::wire
