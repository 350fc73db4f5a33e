#include "proto/base/spare_fd.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

namespace sluice {

bool SpareFd::IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOMEM;
}

UniqueFd SpareFd::Take(int listener) {
  spare_.Reset();
  return UniqueFd(
      accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

void SpareFd::Refill() {
  if (!spare_) spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace sluice
