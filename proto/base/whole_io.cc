#include "proto/base/whole_io.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "proto/base/status.h"

namespace sluice {
namespace {

constexpr size_t kPiece = size_t{64} << 10;

}  // namespace

absl::StatusOr<std::string> ReadAll(int fd, size_t most,
                                    const std::string& what) {
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

}  // namespace sluice
