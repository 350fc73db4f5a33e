// Random streamed steps, so small that a test can run hundreds of them.
#pragma once

#include <cstdint>
#include <string>

#include "tests/torch/stream_fixture.h"

namespace sluice::runtime {

// Draws a step from `seed`.
StepCase RandomStep(uint64_t seed);

// Returns one line with all drawn fields.
std::string ToString(const StepCase& c);

}  // namespace sluice::runtime
