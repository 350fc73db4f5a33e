// Optima of small traces, for tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "proto/plan/profile.h"

namespace sluice::planner {

// Finds the least peak. Tries all placements in which each buffer lies at 0 or
// on top of a buffer with a lower offset; some optimal placement is among them.
class BruteForce {
 public:
  explicit BruteForce(const plan::Trace& trace) : trace_(trace) {}

  int64_t Solve() {
    offsets_.assign(trace_.buffers.size(), -1);
    Extend(0, 0, 0);
    return best_;
  }

 private:
  int64_t SizeOf(size_t k) const {
    return RoundUp(trace_.buffers[k].size, trace_.alignment).count();
  }

  bool Together(size_t a, size_t b) const {
    const plan::Buffer& x = trace_.buffers[a];
    const plan::Buffer& y = trace_.buffers[b];
    return x.lower < y.upper && y.lower < x.upper;
  }

  void Extend(size_t placed, int64_t least, int64_t peak) {
    if (peak >= best_) return;
    if (placed == offsets_.size()) {
      best_ = peak;
      return;
    }
    for (size_t k = 0; k < offsets_.size(); ++k) {
      if (offsets_[k] >= 0) continue;
      int64_t at = 0;
      for (size_t j = 0; j < offsets_.size(); ++j) {
        if (offsets_[j] >= 0 && Together(k, j)) {
          at = std::max(at, offsets_[j] + SizeOf(j));
        }
      }
      if (at < least) continue;
      offsets_[k] = at;
      Extend(placed + 1, at, std::max(peak, at + SizeOf(k)));
      offsets_[k] = -1;
    }
  }

  const plan::Trace& trace_;
  std::vector<int64_t> offsets_;
  int64_t best_ = std::numeric_limits<int64_t>::max();
};

}  // namespace sluice::planner
