// Each rule that the fake driver assumes (tests/fake_cuda/rules.h), broken once
// on purpose: what does this machine's driver answer?
//
// Thread safety: a probe has its process for itself, which may end by it.
#pragma once

#include <optional>
#include <string>

#include "tests/fake_cuda/rules.h"

namespace sluice::verify {

struct Answer {
  int code = 0;             // of the call that breaks the rule
  std::optional<int> then;  // of waiting for the stream, where one is left
};

// GPUs that the probe of this rule needs; absent: there is none.
std::optional<int> GpusFor(fake_cuda::Rule rule);

// "NAME CODE" on standard output, then " THEN" where a stream is left, and 0;
// else a line on stderr why the rule could not be asked.
int AskRule(const std::string& name);

}  // namespace sluice::verify
