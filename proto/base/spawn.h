// Starts a program with no blocked signals, whichever this process blocks for a
// signalfd or for its threads.
//
// Thread safety: safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

struct SpawnOptions {
  std::string name;  // in errors; empty: the first word
  // Pairs of a descriptor here and its number in the child, applied in this
  // order. A descriptor that keeps its number loses close-on-exec.
  std::vector<std::pair<int, int>> files;
  std::vector<std::string> environment;  // "KEY=value"; empty: inherited
  std::vector<int> blocked;              // signals that stay blocked
  // The child's disposition of signals that this process ignores or catches.
  enum class Signals { kAsHere, kDefaultPipe, kDefault };
  Signals signals = Signals::kAsHere;
  bool own_group = false;    // a process group of its own
  bool search_path = false;  // look the first word up in $PATH
};

// Returns the child's pid. NotFound and other codes follow errno; the message
// is "start NAME: …".
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& words,
                            const SpawnOptions& options);

}  // namespace sluice
