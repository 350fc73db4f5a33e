#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "proto/base/status.h"
#include "proto/base/whole_io.h"
#include "proto/wire.h"

namespace sluice::wire {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

absl::Status TooLarge(int64_t size) {
  return absl::InvalidArgumentError(fmt::format(
      "a message of {} bytes is over the limit of {}", size, kMaxMemfdBytes));
}

// Checks `fd` as CheckMemfd does, and returns its size.
absl::StatusOr<size_t> SizeOfMemfd(const UniqueFd& fd) {
  // The size of an unsealed memfd could change between the check and the read.
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError(
        "a file descriptor that carries a message must be a memfd sealed "
        "against writing, growing and shrinking");
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "fstat a memfd");
  if (info.st_size > kMaxMemfdBytes) return TooLarge(info.st_size);
  return static_cast<size_t>(info.st_size);
}

}  // namespace

absl::StatusOr<UniqueFd> ToMemfd(std::string_view name,
                                 std::string_view bytes) {
  if (static_cast<int64_t>(bytes.size()) > kMaxMemfdBytes) {
    return TooLarge(static_cast<int64_t>(bytes.size()));
  }
  UniqueFd fd(
      memfd_create(std::string(name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoStatus(errno, "memfd_create");
  SLUICE_RETURN_IF_ERROR(WriteAll(
      fd.get(), bytes, fmt::format("{} bytes to a memfd", bytes.size())));
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "seal a memfd");
  }
  return fd;
}

absl::Status CheckMemfd(const UniqueFd& fd) { return SizeOfMemfd(fd).status(); }

absl::StatusOr<std::string> FromMemfd(const UniqueFd& fd) {
  SLUICE_ASSIGN_OR_RETURN(const size_t size, SizeOfMemfd(fd));
  return ReadAllAt(fd.get(), size, "a memfd");
}

}  // namespace sluice::wire
