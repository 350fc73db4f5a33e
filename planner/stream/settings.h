// Chooses the settings that the user leaves open: chunk size, prefetch depth,
// backward's order, whether everything is kept in HBM, and, if host memory is
// short, which chunks are kept in HBM or run again. Settings are compared by
// their step time in the available memory. The effect of the chunk size on
// kernels is measured; other effects are computed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/stream/chunk_choice.h"
#include "planner/stream/layer_time.h"
#include "planner/stream/options.h"
#include "proto/base/units.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

struct Settings {
  int64_t chunk = 0;
  int prefetch = 2;
  BackwardOrder order = BackwardOrder::kKeysOuter;
  bool resident = false;     // every class is kept; nothing is copied
  int64_t rerun_layers = 1;  // as in StreamOptions
  // StreamOf chooses the two fields below; SettingsOf leaves them 0.
  int64_t rerun_chunks = 0;  // first chunks that run again, on every rank
  double kept = 0;  // fraction of o, lse and inputs in HBM: the last chunks
  bool operator==(const Settings&) const = default;
};

struct SettingsQuestion {
  // As requested, with a negative alpha if alpha is open. StreamOf fills in
  // chunk, prefetch depth, order and reruns.
  StreamOptions stream;
  int64_t seq_len = 0;
  std::optional<int64_t> chunk;
  std::optional<int> prefetch;
  std::optional<BackwardOrder> order;
  std::optional<double> rerun;  // fraction of the chunks that run again
  std::optional<int64_t> rerun_layers;
  bool may_keep = true;  // whether HBM may keep more than is requested
  Bytes hbm, host;       // memory of this rank, without its states
};

// Returns the settings to compare for one chunk size, in the same order on
// every rank.
std::vector<Settings> SettingsOf(const SettingsQuestion& question,
                                 int64_t chunk);
// Returns the options of a step with these settings, which keeps and swaps as
// much as fits, or what the question requests. If host memory is too small for
// the rows that must be swapped, the step keeps as many last chunks in HBM as
// fit and reruns as few first chunks as possible.
StreamOptions StreamOf(const SettingsQuestion& question,
                       const Settings& settings);

// Returns the step time in seconds, or infinity if the step does not fit or
// `recorded` is empty.
double PredictSeconds(const SettingsQuestion& question,
                      const Settings& settings,
                      const std::vector<plan::SegmentKind>& recorded,
                      const LinkSpeeds& links);

// Returns the range of chunk sizes for ChooseChunk.
ChunkRange ChunksOf(const SettingsQuestion& question);

// Returns `settings` with all chunks run again (unless the question gives the
// chunks or layers), in groups of as many layers as need the least host memory.
Settings LeastHost(const SettingsQuestion& question, Settings settings);

// Returns the number of chunks that is `part` (0 to 1) of `chunks`, rounded up.
int64_t RerunChunks(double part, int64_t chunks);

// Returns `settings` with the fields that StreamOf chose for `options`.
Settings Settled(Settings settings, const StreamOptions& options);

std::string ToString(const Settings& settings);
const char* Name(BackwardOrder order);  // "keys", "queries"

}  // namespace sluice::stream
