// The answers of a real driver to calls that broke an assumed rule. The fake
// driver gives the same answers. They come from a file rules.diff (the setting
// `rules`), which deploy/bundle's `verify` wrote on a machine with that driver.
#pragma once

#include <map>
#include <string>

#include "tests/fake_cuda/rules.h"

namespace sluice::fake_cuda {

struct PlayedAnswer {
  int code = 0;  // 0: the call succeeds
  int then = 0;  // the code of the next wait for the stream
};

// Returns the rules for which the driver's answer differs from the assumed
// answer. Ends the process if `path` is not a rules.diff of this table of
// rules. Lines without an answer change nothing.
std::map<Rule, PlayedAnswer> ReadAnswers(const std::string& path);

}  // namespace sluice::fake_cuda
