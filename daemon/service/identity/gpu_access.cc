#include "daemon/service/identity/gpu_access.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <utility>

#include "proto/base/status.h"

namespace sluice::daemon {

absl::StatusOr<GpuAccess::Identity> GpuAccess::IdentityOf(int fd) {
  struct statx info;
  // Asks for cached attributes, so a file system cannot block the loop.
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO,
            &info) != 0) {
    return ErrnoStatus(errno, "look at a GPU's device node");
  }
  if (S_ISCHR(info.stx_mode)) {
    return Identity(true, makedev(info.stx_rdev_major, info.stx_rdev_minor), 0);
  }
  return Identity(false, makedev(info.stx_dev_major, info.stx_dev_minor),
                  info.stx_ino);
}

absl::StatusOr<GpuAccess> GpuAccess::Make(std::vector<std::string> nodes) {
  GpuAccess access;
  for (const std::string& node : nodes) {
    // (false, 0, 0) is neither a device nor a file.
    Identity identity;
    if (!node.empty()) {
      const UniqueFd fd(open(node.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      if (!fd) return ErrnoStatus(errno, "open " + node);
      SLUICE_ASSIGN_OR_RETURN(identity, IdentityOf(fd.get()));
    }
    access.identities_.push_back(identity);
  }
  access.nodes_ = std::move(nodes);
  return access;
}

GpuAccess::Gpus GpuAccess::Shown(std::span<const UniqueFd> shown) const {
  Gpus gpus;
  for (const UniqueFd& fd : shown) {
    const int flags = fcntl(fd.get(), F_GETFL);
    if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) != O_RDWR) {
      continue;
    }
    const auto identity = IdentityOf(fd.get());
    if (!identity.ok()) continue;
    for (size_t i = 0; i < identities_.size(); ++i) {
      if (!nodes_[i].empty() && identities_[i] == *identity) gpus.insert(i);
    }
  }
  return gpus;
}

absl::Status GpuAccess::May(const Gpus& shown, uint64_t gpu) const {
  // A GPU that does not exist is allowed here and refused where it is used.
  if (gpu >= nodes_.size() || shown.contains(gpu)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      nodes_[gpu].empty()
          ? fmt::format("no process may use GPU {}: sluiced does not know its "
                        "device node; set access = \"any\" in [gpus]",
                        gpu)
          : fmt::format("this process may not use GPU {}: its Hello showed no "
                        "descriptor of {} that is open for reading and "
                        "writing; permit it to open that, or set access = "
                        "\"any\" in [gpus]",
                        gpu, nodes_[gpu]));
}

}  // namespace sluice::daemon
