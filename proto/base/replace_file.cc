#include "proto/base/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "proto/base/whole_io.h"

namespace sluice {

absl::Status ReplaceFile(const std::string& path, std::string_view bytes) {
  const std::string beside = path + ".new";
  unlink(beside.c_str());  // an earlier process may have died here and left it
  const UniqueFd fd(open(beside.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                         0600));
  if (!fd) return ErrnoStatus(errno, "make " + beside);
  absl::Status status = WriteAll(fd.get(), bytes, beside);
  if (status.ok() && fsync(fd.get()) != 0) {
    status = ErrnoStatus(errno, "sync " + beside);
  }
  if (status.ok() && rename(beside.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, "replace " + path);
  }
  if (!status.ok()) unlink(beside.c_str());
  return status;
}

absl::Status SyncFolder(const std::string& folder) {
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || fsync(fd.get()) != 0) return ErrnoStatus(errno, "sync " + folder);
  return absl::OkStatus();
}

}  // namespace sluice
