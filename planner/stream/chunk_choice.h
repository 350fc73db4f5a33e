// Which chunk sizes are measured and which one is taken: one rule, for
// sluice-train and, over the C ABI, for `chunk="auto"` of the Python package.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace sluice::stream {

struct ChunkRange {
  int64_t first = 0;  // rows, measured before all others
  int64_t least = 0, most = 0;
  // A smaller chunk needs less memory. It is taken if it is slower by no more
  // than this part of the fastest.
  double tolerance = 0;
};

struct ChunkTrial {
  int64_t rows = 0;
  // Seconds of one step, or of a part that is equal for all sizes. Infinity: it
  // does not fit.
  double seconds = 0;
  double host_seconds = 0;  // the host's own share of them; 0: not counted
};

struct ChunkChoice {
  std::optional<int64_t> next;  // rows to measure; nullopt: the search is over
  int64_t rows = 0;             // the best of the trials; 0 before the first
};

// Goes up from the first size, doubling, as long as that does not lose or the
// host takes more than a third of the time (of a block of attention the host
// takes the same whatever the size, so it must not hold the device up), then
// down. `trials`: all so far, in the order of `next`.
ChunkChoice ChooseChunk(const ChunkRange& range,
                        std::span<const ChunkTrial> trials);

}  // namespace sluice::stream
