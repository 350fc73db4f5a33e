// Chooses how a step is cut where the user leaves it open: chunk size, prefetch
// depth, backward's order, whether everything is kept in HBM, and, if host
// memory is short, which chunks are kept there or run again. Each setting is
// judged by its step time in the available memory (step_time.h). The effect of
// the chunk size on kernels is measured, the rest is computed.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/stream/chunk_choice.h"
#include "planner/stream/options.h"
#include "planner/stream/step_time.h"
#include "proto/base/units.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

struct Settings {
  int64_t chunk = 0;
  int prefetch = 2;
  BackwardOrder order = BackwardOrder::kKeysOuter;
  bool resident = false;     // every class is kept; nothing is copied
  int64_t rerun_layers = 1;  // as in StreamOptions
  // Chosen by StreamOf for the available memory (0 in the results of
  // SettingsOf): how many first chunks run again, the same on all ranks, and
  // the last fraction of o, lse and inputs that stays in HBM, on this rank.
  int64_t rerun_chunks = 0;
  double kept = 0;
  bool operator==(const Settings&) const = default;
};

// The settings that the user leaves open, and the available memory.
struct SettingsQuestion {
  // Model, ranks, rank, dtype, alpha (negative: free) and fractions as
  // requested. The other fields are filled in.
  StreamOptions stream;
  int64_t seq_len = 0;
  // Unset: chosen.
  std::optional<int64_t> chunk;
  std::optional<int> prefetch;
  std::optional<BackwardOrder> order;
  std::optional<double> rerun;  // fraction of the chunks
  std::optional<int64_t> rerun_layers;
  bool may_keep = true;  // may keep more rows and classes in HBM than requested
  Bytes hbm, host;       // of this rank, without its states
};

// Returns the settings to compare for one chunk size, in a fixed order: the
// same on every rank.
std::vector<Settings> SettingsOf(const SettingsQuestion& question,
                                 int64_t chunk);
// Returns the options of a step with these settings. It keeps and swaps what
// the question requests, else as much as fits. If host memory is too small for
// the rows that must be swapped, it keeps last chunks in HBM as far as they fit
// and reruns as few of the first as possible.
StreamOptions StreamOf(const SettingsQuestion& question,
                       const Settings& settings);

// Returns the step time. Infinity: the step does not fit, or `recorded` is
// empty.
double PredictSeconds(const SettingsQuestion& question,
                      const Settings& settings,
                      const std::vector<plan::SegmentKind>& recorded,
                      const LinkSpeeds& links);

// Returns the chunk sizes to try: upwards from the middle, then downwards. Few
// are measured, because each costs a calibration.
ChunkRange ChunksOf(const SettingsQuestion& question);

// Returns `settings` with all chunks run again, as far as the question leaves
// that open, in groups of as many layers as need the least host memory.
Settings LeastHost(const SettingsQuestion& question, Settings settings);

// Returns `part`, 0 to 1, of the chunks, rounded up.
int64_t RerunChunks(double part, int64_t chunks);

// Returns `settings` with the values that StreamOf chose for `options`.
Settings Settled(Settings settings, const StreamOptions& options);

// "chunk 1024, prefetch 2, queries outer", "…, everything kept on the GPU"
std::string ToString(const Settings& settings);
const char* Name(BackwardOrder order);  // "keys", "queries"

}  // namespace sluice::stream
