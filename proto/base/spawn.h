#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice {

struct SpawnOptions {
  std::string name;  // name in errors; empty: words[0]
  // Pairs of a descriptor here and its number in the child, applied in this
  // order. A descriptor that keeps its number loses close-on-exec.
  std::vector<std::pair<int, int>> files;
  std::vector<std::string> environment;  // "KEY=value"; empty: inherited
  std::vector<int> blocked;              // signals blocked in the child
  // The child's disposition of signals that this process ignores or catches.
  enum class Signals { kAsHere, kDefaultPipe, kDefault };
  Signals signals = Signals::kAsHere;
  bool own_group = false;    // put the child into a new process group
  bool search_path = false;  // search $PATH for words[0]
};

// Starts a program and returns its pid. In the program only the signals of
// `options.blocked` are blocked. The status code follows errno (such as
// NotFound); the message is "start NAME: …".
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& words,
                            const SpawnOptions& options);

struct ProgramResult {
  int exit_status = 0;  // 128 + signal if a signal ended it
  std::string out, err;
};

struct ProgramLimits {
  absl::Duration patience = absl::Seconds(20);
  // Called ten times a second; if it returns true, the program is killed.
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
