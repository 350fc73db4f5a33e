#include "client/train/launch/private_sizes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "client/train/launch/outcome.h"
#include "proto/base/cgroup.h"

namespace sluice::train {
namespace {

constexpr Bytes kGranularity = KiB(64);

Bytes OrDefault(Bytes size, Bytes otherwise) {
  return RoundUp(size.count() > 0 ? size : otherwise, kGranularity);
}

}  // namespace

PrivateDaemon::Options PrivateSizes(const RunOptions& options) {
  const bool check = options.command == Command::kCheck;
  PrivateDaemon::Options sizes;
  sizes.gpus = options.ranks;
  sizes.gpu_memory = OrDefault(options.hbm, check ? GiB(1) : MiB(256));
  sizes.host_memory = OrDefault(options.host, check ? GiB(4) : GiB(1));
  sizes.throttled = !check;
  return sizes;
}

absl::Status CheckPrivateSizes(const RunOptions& options, Bytes machine) {
  struct Size {
    const char* flag;
    Bytes size;
    const char* what;
  };
  for (const Size& s : {Size{"--hbm", options.hbm, "a simulated GPU"},
                        Size{"--host", options.host, "its host pool"}}) {
    if (s.size <= machine) continue;
    return BadInput(fmt::format(
        "{} {}: {} is made of this machine's memory, which has {}: give less",
        s.flag, FormatBytes(s.size), s.what, FormatBytes(machine)));
  }
  return absl::OkStatus();
}

Bytes MachineMemory() {
  const Bytes all(int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE));
  const auto limit = CgroupMemoryLimit();
  return limit ? std::min(all, limit->most) : all;
}

}  // namespace sluice::train
