#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

struct SpawnOptions {
  std::string name;  // name in errors; empty: words[0]
  // Pairs of a descriptor here and its number in the child, applied in this
  // order. A descriptor that keeps its number loses close-on-exec.
  std::vector<std::pair<int, int>> files;
  std::vector<std::string> environment;  // "KEY=value"; empty: inherited
  std::vector<int> blocked;              // signals that stay blocked
  // The child's disposition of signals that this process ignores or catches.
  enum class Signals { kAsHere, kDefaultPipe, kDefault };
  Signals signals = Signals::kAsHere;
  bool own_group = false;    // put the child into a new process group
  bool search_path = false;  // search $PATH for words[0]
};

// Starts a program without the signals blocked that this process may block, and
// returns its pid. The status code follows errno (such as NotFound); the
// message is "start NAME: …".
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& words,
                            const SpawnOptions& options);

}  // namespace sluice
