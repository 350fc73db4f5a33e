#include "planner/stream/chunk_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::stream {
namespace {

// The search continues after a size that takes at most this many times the
// least time, because measured times vary, and a larger size may be faster.
constexpr double kSlack = 1.03;
constexpr double kHostShare = 1.0 / 3;

bool HostIsHidden(const ChunkTrial& t) {
  return t.host_seconds <= kHostShare * t.seconds;
}

std::optional<int64_t> Next(const ChunkRange& range,
                            std::span<const ChunkTrial> trials) {
  if (trials.empty()) return range.first;
  const double best =
      std::ranges::min(trials, {}, &ChunkTrial::seconds).seconds;
  const auto loses = [best](const ChunkTrial& t) {
    return t.seconds > best * kSlack;
  };
  const ChunkTrial& last = trials.back();
  const bool went_down = last.rows < range.first;
  if (!went_down && last.rows < range.most && std::isfinite(last.seconds) &&
      !(loses(last) && HostIsHidden(last))) {
    return std::min(2 * last.rows, range.most);
  }
  const ChunkTrial& above = went_down ? last : trials.front();
  if (loses(above) || !HostIsHidden(above) || above.rows / 2 < range.least) {
    return std::nullopt;
  }
  return above.rows / 2;
}

// Returns the smallest tried size within the tolerance, or the largest one if
// the host delays the device at every tried size.
int64_t Best(const ChunkRange& range, std::span<const ChunkTrial> trials) {
  double least = std::numeric_limits<double>::infinity();
  int64_t rows = 0;
  for (const ChunkTrial& t : trials) {
    if (HostIsHidden(t)) least = std::min(least, t.seconds);
    rows = std::max(rows, t.rows);
  }
  for (const ChunkTrial& t : trials) {
    if (HostIsHidden(t) && t.seconds <= (1 + range.tolerance) * least) {
      rows = std::min(rows, t.rows);
    }
  }
  return rows;
}

}  // namespace

ChunkChoice ChooseChunk(const ChunkRange& range,
                        std::span<const ChunkTrial> trials) {
  return {Next(range, trials), Best(range, trials)};
}

}  // namespace sluice::stream
