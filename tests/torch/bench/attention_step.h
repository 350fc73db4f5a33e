// Compares the attention blocks of a real step with ATen's whole attention.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/bench/report.h"

namespace sluice::bench {

// Runs a step of 4,096 tokens on one thread for each chunk size, in turns with
// whole attention of the same shape. Returns the median ratios of the rounds.
std::vector<Entry> AttentionOfSteps();

}  // namespace sluice::bench
