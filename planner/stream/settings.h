// How a step is cut, where the user leaves it open: chunk, prefetch depth,
// backward's order, whether everything is kept in HBM, and where host memory is
// short which chunks are kept there or run again. Each setting is
// judged by the step time it would have in the memory there is (step_time.h);
// what the chunk's size does to kernels is measured, the rest computed.
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
  bool resident = false;     // every class kept: nothing moves
  int64_t rerun_layers = 1;  // StreamOptions'
  // Chosen by StreamOf for the memory there is (0 in what SettingsOf lists):
  // how many first chunks run again, the same on all ranks, and the last part
  // of o, lse and inputs that stays in HBM, on this rank.
  int64_t rerun_chunks = 0;
  double kept = 0;
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
  std::optional<double> rerun;  // part of the chunks
  std::optional<int64_t> rerun_layers;
  bool may_keep = true;  // rows and classes in HBM, beyond what is asked
  Bytes hbm, host;       // of this rank, beside its states
};

// The settings of one chunk size, in a fixed order: the same on every rank.
std::vector<Settings> SettingsOf(const SettingsQuestion& question,
                                 int64_t chunk);
// A step with these settings. It keeps and swaps what the question asks, else
// as much as there is room for. If host memory is too small for the least that
// must be swapped, the last chunks stay in HBM as far as it goes, and as few as
// possible of the first run again.
StreamOptions StreamOf(const SettingsQuestion& question,
                       const Settings& settings);

// Infinity: it does not fit, or `recorded` is empty.
double PredictSeconds(const SettingsQuestion& question,
                      const Settings& settings,
                      const std::vector<plan::SegmentKind>& recorded,
                      const LinkSpeeds& links);

// The chunk sizes to try: from the middle up, then down. Few are measured,
// since each costs a calibration.
ChunkRange ChunksOf(const SettingsQuestion& question);

// `settings` with all chunks run again, as far as the question leaves that
// open, by as many layers as need the least host memory.
Settings LeastHost(const SettingsQuestion& question, Settings settings);

// A part of the chunks, 0 to 1, rounded up.
int64_t RerunChunks(double part, int64_t chunks);

// `settings` with what StreamOf made of it.
Settings Settled(Settings settings, const StreamOptions& options);

// "chunk 1024, prefetch 2, queries outer", "…, everything kept on the GPU"
std::string ToString(const Settings& settings);
const char* Name(BackwardOrder order);  // "keys", "queries"

}  // namespace sluice::stream
