// The sentences that a run prints during training.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "client/train/watch/rank_page.h"

namespace sluice::train {

// Formats "34 s", "5 min", "2 h 10 min".
std::string Duration(double seconds);

// Formats "step 12/50  43 %  layer 3 of 8, chunk 5 of 64  about 34 s left".
std::string ProgressText(const RankSample& sample, int64_t steps, double now_s);

struct StopWish {
  int signal = 0;            // 0: the job was evicted
  int64_t last_step = 0;     // the last step to run; 0: none
  std::string save;          // empty: nothing is saved
  bool second_kills = true;  // under our launcher
};
// Formats "Ctrl-C: finishing step 12 (about 34 s left), then saving to out/run;
// press Ctrl-C again to stop at once".
std::string StopText(const StopWish& wish, const RankSample& sample,
                     double now_s);

}  // namespace sluice::train
