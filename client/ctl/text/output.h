// Reports errors, and writes output files whole or not at all.
// Thread safety: one thread, because WriteOutput sets umask and signal mask.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::ctl {

inline constexpr int kBadInput = 2;
inline constexpr int kDoesNotFit = 3;
inline constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells report it

// Prints one `error:` line to stderr. Returns 2 for mistakes of the caller
// (InvalidArgument, NotFound), else 1.
int ReportError(const absl::Status& status);
// Returns the exit status that a command returned, or reports its error.
int ExitStatus(const absl::StatusOr<int>& result);

// Checks whether `path` can be written. Call it before long work.
absl::Status CheckOutput(const std::string& path);

// Writes and renames a temporary file: a reader sees the old file or the whole
// new file, also after Ctrl-C or on a full disk. "-" means stdout.
absl::Status WriteOutput(const std::string& path, std::string_view text);

}  // namespace sluice::ctl
