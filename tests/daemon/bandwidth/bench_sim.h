// A figure of `./dev bench bandwidth` on a clock: a real daemon, real ranks and
// real copies on simulated GPUs.
#pragma once

#include <vector>

#include "tests/bench/report.h"

namespace sluice::bench {

// 8 GPUs, 2 behind each switch, the same bytes each way for all.
std::vector<Entry> EightGpusOnAClock();

}  // namespace sluice::bench
