#include "daemon/keeper/say.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "proto/base/unique_fd.h"

namespace sluice::daemon {
namespace {

std::string LineOf(const std::string& text) {
  std::string line = "sluiced-keeper: " + text;
  // Pipes write at most this many bytes atomically.
  if (line.size() >= PIPE_BUF) line.resize(PIPE_BUF - 1);
  line += '\n';
  return line;
}

void Write(int fd, std::string_view line) {
  pollfd writable = {.fd = fd, .events = POLLOUT, .revents = 0};
  if (poll(&writable, 1, 0) != 1 || (writable.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const ssize_t wrote = write(fd, line.data(), line.size());
}

// Opens the pipe at stderr a second time, with O_NONBLOCK: the daemon writes to
// the same pipe, and the keeper must not wait if it is full. Setting O_NONBLOCK
// on the inherited descriptor would affect all its users. A file is not opened
// again: it never blocks, and a second descriptor would have its own offset.
UniqueFd PipeOpenedAgain() {
  struct stat of = {};
  if (fstat(STDERR_FILENO, &of) != 0 || !S_ISFIFO(of.st_mode)) {
    return UniqueFd();
  }
  return UniqueFd(
      open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
}

}  // namespace

void Say(const std::string& text) {
  static const UniqueFd& pipe = *new UniqueFd(PipeOpenedAgain());
  Write(pipe ? pipe.get() : STDERR_FILENO, LineOf(text));
}

void SayFromFork(const std::string& text) {
  Write(STDERR_FILENO, LineOf(text));
}

}  // namespace sluice::daemon
