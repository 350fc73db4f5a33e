#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice {

struct ProgramResult {
  int exit_status = 0;  // 128 + signal if a signal ended it
  std::string out, err;
};

struct ProgramLimits {
  absl::Duration patience = absl::Seconds(20);
  // Called ten times a second; the program is killed when it returns true.
  std::function<bool()> stopped;
  std::string_view input;  // the program's stdin
};

// Runs `words` to the program's end, and searches $PATH for `words[0]`.
// NotFound: there is no such program. DeadlineExceeded: it was killed at the
// deadline. Cancelled: `stopped` returned true.
absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& words,
                                         const ProgramLimits& limits = {});

// Runs a program and returns what it printed. Unavailable, with the first line
// of its stderr: the program failed.
absl::StatusOr<std::string> OutputOf(const std::vector<std::string>& words,
                                     const ProgramLimits& limits = {});

}  // namespace sluice
