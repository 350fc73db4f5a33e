// Reads a daemon's arguments from its command line.
//
// Thread safety: pure function.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice::ctl {

struct StartedWith {
  std::optional<std::string> config;  // as given, possibly a relative path
  // All words except the program, the configuration and the folder.
  std::vector<std::string> others;
};

// `words` are the program and its arguments, as in /proc/PID/cmdline; empty if
// the command line is unknown.
StartedWith ReadStartedWith(const std::vector<std::string>& words);

}  // namespace sluice::ctl
