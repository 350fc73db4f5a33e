// Chooses which chunk sizes are measured and which one is used: one rule, for
// sluice-train and, over the C ABI, for `chunk="auto"` of the Python package.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace sluice::stream {

struct ChunkRange {
  int64_t first = 0;  // rows, measured first
  int64_t least = 0, most = 0;
  // A smaller chunk needs less memory, so it is chosen if it is slower by at
  // most this fraction of the fastest time.
  double tolerance = 0;
};

struct ChunkTrial {
  int64_t rows = 0;
  // Seconds of one step, or of a part that is the same work for all sizes.
  // Infinity: the size does not fit.
  double seconds = 0;
  double host_seconds = 0;  // the host's own share of them; 0: not measured
};

struct ChunkChoice {
  std::optional<int64_t> next;  // rows to measure; nullopt: the search is over
  int64_t rows = 0;  // the best of the trials; 0 before the first trial
};

// Chooses the next size to measure. Doubles from the first size while that is
// not slower, or while the host takes more than a third of the time; then
// halves below the first size. (The host takes the same time per block of
// attention whatever the size, and must not delay the device.) `trials`: all
// trials so far, in the order of `next`.
ChunkChoice ChooseChunk(const ChunkRange& range,
                        std::span<const ChunkTrial> trials);

}  // namespace sluice::stream
