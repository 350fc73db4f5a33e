#include "proto/base/lost_output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sluice {
namespace {

bool ReaderIsGone() {
  pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&out, 1, /*timeout=*/0) == 1 && (out.revents & POLLERR) != 0;
}

void CheckOutput() {
  errno = 0;
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !failed_before) return;
  const int error = errno;  // 0 if an earlier write failed
  if (error != EPIPE && !ReaderIsGone()) {
    std::fprintf(stderr, "error: cannot write to standard output: %s\n",
                 error != 0 ? std::strerror(error) : "is its disk full?");
    std::fflush(stderr);
  }
  _exit(1);
}

}  // namespace

void FailOnLostOutput() {
  std::signal(SIGPIPE, SIG_IGN);
  std::atexit(CheckOutput);
}

}  // namespace sluice
