#include "daemon/worker_user.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <vector>

namespace sluice::daemon {

absl::StatusOr<WorkerUser> FindWorkerUser(const std::string& name) {
  if (name.empty()) return WorkerUser{};
  std::vector<char> buffer(1 << 16);
  passwd entry = {};
  passwd* found = nullptr;
  getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    return absl::NotFoundError(
        fmt::format("user in [worker] is '{}', and there is no such user: make "
                    "it, or name another",
                    name));
  }
  if (geteuid() == found->pw_uid) return WorkerUser{};
  if (geteuid() != 0) {
    return absl::PermissionDeniedError(fmt::format(
        "user in [worker] is '{}', and only a daemon that runs as root may "
        "change its worker's user: leave the key out",
        name));
  }
  return WorkerUser{found->pw_uid, found->pw_gid};
}

}  // namespace sluice::daemon
