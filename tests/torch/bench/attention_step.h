// Compares the attention blocks of a real step with ATen's whole attention.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/bench/report.h"

namespace sluice::bench {

// Runs a step of `tokens` tokens on one thread, once per chunk size, in turns
// with the whole attention of the same shape. Returns the median ratios of 7
// rounds.
std::vector<Entry> AttentionOfSteps();

}  // namespace sluice::bench
