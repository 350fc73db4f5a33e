// What every fuzzing of the trace readers does with one input.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice::fuzz {

// Reads `bytes` as each format and as itself, and aborts unless the answer is
// a trace within its limits or one clear line. Traces that are read are
// written as a plan's CSV, which must read back as the same trace.
void ReadAsTrace(std::string_view bytes);

}  // namespace sluice::fuzz
