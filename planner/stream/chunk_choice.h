// Chooses the chunk sizes to measure and the one to use, for sluice-train and
// (over the C ABI) `chunk="auto"` of the Python package.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace sluice::stream {

struct ChunkRange {
  int64_t first = 0;  // the size to measure first, in rows
  int64_t least = 0, most = 0;
  // The search chooses the smallest chunk that takes at most this fraction
  // longer than the fastest, because smaller chunks need less memory.
  double tolerance = 0;
};

struct ChunkTrial {
  int64_t rows = 0;
  // Seconds of one step, or of a part of it with the same work for all sizes.
  // Infinity if the size does not fit.
  double seconds = 0;
  // The part of `seconds` in which the host was busy; 0 if not measured.
  double host_seconds = 0;
};

struct ChunkChoice {
  std::optional<int64_t> next;  // rows to measure; unset if the search is over
  int64_t rows = 0;  // the best of the trials; 0 before the first trial
};

// The search doubles from the first size while a larger size is not slower, or
// while the host is busy for more than a third of the time; then it halves
// below the first size. (The host takes the same time per block of attention
// whatever the size, and must not delay the device.) `trials` has all trials so
// far, in order.
ChunkChoice ChooseChunk(const ChunkRange& range,
                        std::span<const ChunkTrial> trials);

}  // namespace sluice::stream
