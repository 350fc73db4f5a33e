#include "daemon/policy_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "daemon/runtime/runtime_dir.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "proto/base/whole_io.h"

namespace sluice::daemon {
namespace {

constexpr size_t kMaxFileBytes = size_t{16} << 20;

}  // namespace

uid_t PolicyFile::owner() const {
  struct stat info;
  return stat(folder_.c_str(), &info) == 0 ? info.st_uid : geteuid();
}

absl::StatusOr<Policy> PolicyFile::Read(const Clocks& now, uid_t daemon) const {
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(fmt::format(
        "the policy {} is not used: {}; mend it, or move it away to start "
        "without what administrators had set; where a newer sluiced wrote it, "
        "install that one again",
        path(), why));
  };
  if (folder_.empty()) return Policy();
  const UniqueFd fd(
      open(path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) return Policy();
  if (!fd && errno == EACCES) {
    return ErrnoStatus(errno, "read the policy " + path());
  }
  if (!fd) return refuse(std::string(ErrnoStatus(errno, "open it").message()));
  struct stat info;
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return refuse("it is no regular file");
  }
  if ((info.st_uid != daemon && info.st_uid != 0) ||
      (info.st_mode & 022) != 0) {
    return refuse("others than its user may write to it (chown, chmod go-w)");
  }
  const auto bytes = ReadAll(fd.get(), kMaxFileBytes, "it");
  if (!bytes.ok()) return refuse(std::string(bytes.status().message()));
  auto policy = DecodePolicy(*bytes, now);
  if (!policy.ok()) return refuse(std::string(policy.status().message()));
  return policy;
}

absl::Status PolicyFile::Write(const Policy& policy, const Clocks& now) const {
  const auto fault = [&](const absl::Status& why) {
    return Annotate(why, fmt::format("the policy {} was not written", path()));
  };
  std::error_code error;
  if (!std::filesystem::is_directory(folder_, error)) {
    std::filesystem::create_directories(folder_, error);
    if (error) return fault(ErrnoStatus(error.value(), "make " + folder_));
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all,
                                 error);
  }
  if (absl::Status safe =
          CheckOwnDirectory(folder_, "policy's folder", "folder in [policy]");
      !safe.ok()) {
    return fault(safe);
  }
  if (absl::Status written = ReplaceFile(path(), EncodePolicy(policy, now));
      !written.ok()) {
    return fault(written);
  }
  absl::Status status = SyncFolder(folder_);
  if (status.ok()) return status;
  return absl::DataLossError(fmt::format(
      "the policy {} was written, and may be the old one again if the power "
      "fails before it is on the disk: {}",
      path(), std::string(status.message())));
}

}  // namespace sluice::daemon
