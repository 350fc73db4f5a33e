// Streamed steps of random shapes, small enough for hundreds of them, that
// print themselves.
#pragma once

#include <cstdint>
#include <string>

#include "tests/torch/stream_fixture.h"

namespace sluice::runtime {

// Every question that StreamOptions answers, drawn from `seed`.
StepCase RandomStep(uint64_t seed);

// One line that names everything in it.
std::string ToString(const StepCase& c);

}  // namespace sluice::runtime
