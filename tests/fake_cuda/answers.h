// What a real driver answered to calls that broke an assumed rule: the
// rules.diff that deploy/bundle's `verify` made on it (rules=FILE). The fake
// plays these.
//
// Thread safety: values and pure functions.
#pragma once

#include <map>
#include <string>

#include "tests/fake_cuda/rules.h"

namespace sluice::fake_cuda {

struct PlayedAnswer {
  int code = 0;  // 0: it lets the caller pass
  int then = 0;  // of waiting for the stream afterwards
};

// The rules that were answered otherwise than assumed. Another kind of file, or
// one of another table, ends the process. Lines without an answer change
// nothing.
std::map<Rule, PlayedAnswer> ReadAnswers(const std::string& path);

}  // namespace sluice::fake_cuda
