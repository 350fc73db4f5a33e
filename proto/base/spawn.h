// Starts a program as one expects to be started: no signal is blocked, whatever
// this process blocks for a signalfd or for its threads.
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
  // What becomes which descriptor of the child, in this order; one that becomes
  // itself is no longer closed on exec. All others are as at any exec.
  std::vector<std::pair<int, int>> files;
  std::vector<std::string> environment;  // "KEY=value"; empty: this process'
  std::vector<int> blocked;              // signals that are all the same
  // What becomes of signals that this process ignores or catches.
  enum class Signals { kAsHere, kDefaultPipe, kDefault };
  Signals signals = Signals::kAsHere;
  bool own_group = false;    // a process group of its own
  bool search_path = false;  // the first word is looked for in $PATH
};

// The child's pid. NotFound and others, as the system says it: "start NAME: …".
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& words,
                            const SpawnOptions& options);

}  // namespace sluice
