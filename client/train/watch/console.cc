#include "client/train/watch/console.h"

#include <unistd.h>

#include <cstdio>

namespace sluice::train {

Console::Console() : terminal_(isatty(STDERR_FILENO) == 1) {}

Console::~Console() { Close(); }

void Console::Close() {
  const MutexLock lock(mutex_);
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

void Console::Line(const std::string& text) {
  const MutexLock lock(mutex_);
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", text.c_str());
  std::fflush(stderr);
  open_ = terminal_;
}

void Console::Note(const std::string& text) {
  const MutexLock lock(mutex_);
  std::fprintf(stderr, "%s%s\n", open_ ? "\r\033[K" : "", text.c_str());
  std::fflush(stderr);
  open_ = false;
}

}  // namespace sluice::train
