#include "kernels/device/sim/clocks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "kernels/device/sim/sim.h"
#include "proto/base/status.h"

namespace sluice::device {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::StatusOr<Mapped<SharedClocks>> Map(int fd, int flags) {
  void* const at = mmap(nullptr, sizeof(SharedClocks), PROT_READ | PROT_WRITE,
                        MAP_SHARED | flags, fd, 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "map the clocks of links");
  return Mapped<SharedClocks>(static_cast<SharedClocks*>(at));
}

}  // namespace

absl::StatusOr<UniqueFd> MakeSimClocks() {
  UniqueFd fd(
      memfd_create("sluice-sim-clocks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), sizeof(SharedClocks)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "make the clocks of simulated links");
  }
  return fd;
}

absl::StatusOr<Mapped<SharedClocks>> MapClocks(const UniqueFd& fd) {
  struct stat status;
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals ||
      fstat(fd.get(), &status) != 0 || status.st_size != sizeof(SharedClocks)) {
    return absl::InvalidArgumentError(
        "this descriptor is not of the clocks of simulated links: use the same "
        "version of sluiced and libsluice");
  }
  return Map(fd.get(), 0);
}

absl::StatusOr<Mapped<SharedClocks>> PrivateClocks() {
  return Map(-1, MAP_ANONYMOUS);
}

}  // namespace sluice::device
