#include "proto/base/whole_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice {

absl::StatusOr<std::string> ReadAll(int fd, size_t most,
                                    const std::string& what) {
  constexpr size_t kPiece = size_t{64} << 10;
  std::string bytes;
  while (true) {
    const size_t have = bytes.size();
    bytes.resize(have + kPiece);
    const ssize_t got = read(fd, bytes.data() + have, kPiece);
    const int error = errno;
    bytes.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && error == EINTR) continue;
    if (got < 0) return ErrnoStatus(error, "read " + what);
    if (got == 0) return bytes;
    if (bytes.size() > most) {
      return absl::InvalidArgumentError(
          fmt::format("{} is larger than {} bytes", what, most));
    }
  }
}

absl::StatusOr<std::string> ReadAllAt(int fd, size_t size,
                                      const std::string& what) {
  std::string bytes(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t got =
        pread(fd, bytes.data() + done, size - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return ErrnoStatus(got < 0 ? errno : EIO, "read " + what);
    done += static_cast<size_t>(got);
  }
  return bytes;
}

absl::Status WriteAll(int fd, std::string_view bytes, const std::string& what) {
  while (!bytes.empty()) {
    const ssize_t put = write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    // A write that writes nothing would be retried for ever.
    if (put <= 0) return ErrnoStatus(put < 0 ? errno : EIO, "write " + what);
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return absl::OkStatus();
}

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
