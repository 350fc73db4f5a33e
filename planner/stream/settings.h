// How a step is cut, where the user leaves it open: chunk, prefetch depth,
// backward's order, and whether everything is kept in HBM. Each setting is
// judged by the step time it would have in the memory there is (step_time.h);
// what the chunk's size does to kernels is measured, the rest computed.
//
// Thread safety: pure functions; ChunkSearch is a value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/stream/options.h"
#include "planner/stream/step_time.h"
#include "proto/base/units.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

struct Settings {
  int64_t chunk = 0;
  int prefetch = 2;
  BackwardOrder order = BackwardOrder::kKeysOuter;
  bool resident = false;  // every class kept: nothing moves
  bool operator==(const Settings&) const = default;
};

// What the user leaves open, and what there is.
struct SettingsQuestion {
  // Model, ranks, rank, dtype, alpha (negative: free) and fractions as asked;
  // the rest is filled in.
  StreamOptions stream;
  int64_t seq_len = 0;
  // Unset: open.
  std::optional<int64_t> chunk;
  std::optional<int> prefetch;
  std::optional<BackwardOrder> order;
  bool may_keep = true;  // rows and classes in HBM, beyond what is asked
  Bytes hbm, host;       // of this rank, beside its states
};

// The settings of one chunk size, in a fixed order: the same on every rank.
std::vector<Settings> SettingsOf(const SettingsQuestion& question,
                                 int64_t chunk);
// A step with these settings: kept and swapped is what the question asks, else
// as much as there is room for.
StreamOptions StreamOf(const SettingsQuestion& question,
                       const Settings& settings);

// Infinity: it does not fit, or `recorded` is empty.
double PredictSeconds(const SettingsQuestion& question,
                      const Settings& settings,
                      const std::vector<plan::SegmentKind>& recorded,
                      const LinkSpeeds& links);

// Which chunk sizes to try: from the middle up, doubling, as long as that does
// not lose, then down. Few are measured, since each costs a calibration.
class ChunkSearch {
 public:
  explicit ChunkSearch(const SettingsQuestion& question);
  // The next size to measure; none: the search is over.
  std::optional<int64_t> Next() const { return next_; }
  // The seconds of its best setting (infinity: it does not fit).
  void Tell(double seconds);

 private:
  int64_t most_, least_, first_;
  std::optional<int64_t> next_;
  bool up_ = true;
  double first_seconds_, best_;
};

// "chunk 1024, prefetch 2, queries outer", "…, everything kept on the GPU"
std::string ToString(const Settings& settings);
const char* Name(BackwardOrder order);  // "keys", "queries"

}  // namespace sluice::stream
