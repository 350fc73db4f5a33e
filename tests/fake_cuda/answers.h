// The answers of a real driver to calls that broke an assumed rule: the
// rules.diff that deploy/bundle's `verify` made on that driver (rules=FILE).
// The fake emulates them.
//
// Thread safety: values and pure functions.
#pragma once

#include <map>
#include <string>

#include "tests/fake_cuda/rules.h"

namespace sluice::fake_cuda {

struct PlayedAnswer {
  int code = 0;  // 0: the call succeeds
  int then = 0;  // of waiting for the stream afterwards
};

// Returns the rules for which the driver's answer differs from the assumed one.
// Another kind of file, or one of another table, ends the process. Lines
// without an answer change nothing.
std::map<Rule, PlayedAnswer> ReadAnswers(const std::string& path);

}  // namespace sluice::fake_cuda
