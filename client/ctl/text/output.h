// What every command does with its answer: the exit status of a fault, and
// files that are whole or not there.
//
// Thread safety: pure functions, but for the files they write.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sluice::ctl {

inline constexpr int kBadInput = 2;
inline constexpr int kDoesNotFit = 3;
inline constexpr int kInterrupted = 130;  // as shells count SIGINT

// Prints one `error:` line to stderr. 2 where the caller is at fault
// (InvalidArgument, NotFound), else 1.
int ReportError(const absl::Status& status);

// Whether `path` can be written to later: asked before work that lasts.
absl::Status CheckOutput(const std::string& path);

// Writes `text` to `path` through a temporary file beside it, renamed at the
// end: a reader sees the old file or the whole new one, also after Ctrl-C or on
// a full disk. "-" is stdout. Faults name the path and why.
absl::Status WriteOutput(const std::string& path, std::string_view text);

}  // namespace sluice::ctl
