// A program, run to its end.
//
// Thread safety: safe.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice {

struct ProgramResult {
  int exit_status = 0;  // 128 and the signal, where one ended it
  std::string out, err;
};

struct ProgramLimits {
  absl::Duration patience = absl::Seconds(20);
  // Asked ten times a second: true ends it.
  std::function<bool()> stopped;
  std::string_view input;  // that it reads on stdin
};

// Found in $PATH. NotFound: there is no such program; DeadlineExceeded: it was
// killed; Cancelled: `stopped`.
absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& words,
                                         const ProgramLimits& limits = {});

// What it printed. Unavailable too: it failed, with its complaint's first line.
absl::StatusOr<std::string> OutputOf(const std::vector<std::string>& words,
                                     const ProgramLimits& limits = {});

}  // namespace sluice
