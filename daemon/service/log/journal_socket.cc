#include "daemon/service/log/journal_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "proto/base/status.h"
#include "proto/base/unix_address.h"

namespace sluice::daemon {

bool JournalSocket::ReadsStderr(const char* stream) {
  struct stat info;
  if (stream == nullptr || fstat(STDERR_FILENO, &info) != 0) return false;
  return fmt::format("{}:{}", info.st_dev, info.st_ino) == stream;
}

absl::StatusOr<JournalSocket> JournalSocket::Make(const std::string& path) {
  const auto address = UnixAddress(path);
  if (!address) {
    return absl::InvalidArgumentError(path + " is too long for a socket");
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "make a unix socket");
  return JournalSocket(std::move(fd), *address);
}

std::string JournalSocket::Encode(const Fields& fields) {
  std::string entry;
  for (const auto& [name, value] : fields) {
    entry += name;
    if (value.find('\n') == std::string::npos) {
      entry += '=';
    } else {  // preceded by its length, little-endian
      entry += '\n';
      for (int shift = 0; shift < 64; shift += 8) {
        entry += static_cast<char>(uint64_t{value.size()} >> shift & 0xff);
      }
    }
    entry += value;
    entry += '\n';
  }
  return entry;
}

bool JournalSocket::Send(const std::string& entry) const {
  while (true) {
    if (sendto(socket_.get(), entry.data(), entry.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&to_), sizeof(to_)) >= 0) {
      return true;
    }
    if (errno != EINTR) return false;
  }
}

}  // namespace sluice::daemon
