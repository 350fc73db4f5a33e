// Progress for people on stderr. On a terminal one line is rewritten and notes
// go above it; elsewhere (a log file, a pipe) everything is a line of its own.
// Thread safety: safe.
#pragma once

#include <string>

#include "proto/base/mutex.h"

namespace sluice::train {

class Console {
 public:
  Console();
  ~Console();
  bool terminal() const { return terminal_; }
  void Line(const std::string& text);  // progress
  void Note(const std::string& text);  // a line of its own, which stays
  // Ends the rewritten line, before other output to stderr.
  void Close();

 private:
  const bool terminal_;
  Mutex mutex_;
  // The rewritten line has no newline yet.
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::train
