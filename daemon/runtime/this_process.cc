#include "daemon/runtime/this_process.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace sluice::daemon {

int64_t RaiseDescriptorLimit() {
  rlimit limit = {.rlim_cur = 1024, .rlim_max = 1024};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
      limit.rlim_cur < limit.rlim_max) {
    const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  // Applied if the limit is unlimited or higher.
  constexpr rlim_t kMost = 1 << 20;
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMost));
}

const std::string& ThisProgram() {
  std::error_code error;
  static const std::string self =
      std::filesystem::read_symlink("/proc/self/exe", error).string();
  return self;
}

std::string Sibling(const std::string& name) {
  return std::filesystem::path(ThisProgram()).replace_filename(name).string();
}

}  // namespace sluice::daemon
