// Probes, each of which breaks a rule that the fake driver assumes
// (tests/fake_cuda/rules.h). Thread safety: a probe must be the only code in
// its process, which it may crash.
#pragma once

#include <optional>
#include <string>

#include "tests/fake_cuda/rules.h"

namespace sluice::verify {

struct Answer {
  int code = 0;             // result of the call that breaks the rule
  std::optional<int> then;  // result of waiting for the stream, if it exists
};

// Returns how many GPUs the rule's probe needs; nullopt: there is no probe.
std::optional<int> GpusFor(fake_cuda::Rule rule);

// Runs the rule's probe. Prints "NAME CODE", then " THEN" if the stream still
// exists (see Answer), and returns 0. If the rule cannot be tested, prints the
// reason to stderr and returns or exits with another status.
int AskRule(const std::string& name);

}  // namespace sluice::verify
