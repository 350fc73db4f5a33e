// Random streamed steps, small enough to run hundreds of them, with a printed
// form.
#pragma once

#include <cstdint>
#include <string>

#include "tests/torch/stream_fixture.h"

namespace sluice::runtime {

// Draws every field of StreamOptions from `seed`.
StepCase RandomStep(uint64_t seed);

// Returns one line with all fields.
std::string ToString(const StepCase& c);

}  // namespace sluice::runtime
