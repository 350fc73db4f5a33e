// What a daemon was started with, as its command line says.
//
// Thread safety: pure function.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice::ctl {

struct StartedWith {
  std::optional<std::string> config;  // as given: it may be relative
  // Neither its program, nor its configuration, nor its folder.
  std::vector<std::string> others;
};

// `words`: the program first, as /proc/PID/cmdline has them; none: nothing is
// known.
StartedWith ReadStartedWith(const std::vector<std::string>& words);

}  // namespace sluice::ctl
