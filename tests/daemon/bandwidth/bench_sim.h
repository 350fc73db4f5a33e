// Figures of `./dev bench bandwidth` in real time: a real daemon, real ranks
// and real copies on simulated GPUs.
#pragma once

#include <vector>

#include "tests/bench/report.h"

namespace sluice::bench {

// Measures 8 GPUs, 2 behind each switch, that all copy the same number of bytes
// in each direction.
std::vector<Entry> EightGpusOnAClock();

}  // namespace sluice::bench
