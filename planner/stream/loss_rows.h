// How the loss cuts its rows: logits of how many at a time, and over how many
// chunks at once. Pure arithmetic.
//
// Every call of the loss reads and writes the whole head gradient [vocab,
// hidden] in fp32 and reads the head's weights twice, however few rows it has.
// Rows are chosen so that this traffic is a small part of the step's
// computation, but never so many that the logits [rows, vocab] are larger than
// the head gradient itself. A chunk that has fewer rows shares its calls with
// the chunks after it.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stream/options.h"

namespace sluice::stream {

// Operations that take as long as a byte of memory traffic: a core has 5 to 10,
// an H100 200 to 300.
inline constexpr double kOperationsPerByte = 100;
// The head's traffic may take this share of the step's computation.
inline constexpr double kHeadTrafficShare = 0.05;
// Fewer rows leave the units of a matrix multiplication idle.
inline constexpr int64_t kLeastLossRows = 128;
// And fewer logits a GPU: each call is some twenty kernels, however short. With
// 128 rows of 256 the loss of 16,384 rows took an H100 44 ms, mostly of
// launches.
inline constexpr int64_t kLeastLogits = 1 << 22;
// A calibration runs two groups at most, so a group is not to be long.
inline constexpr int64_t kMostLossChunks = 16;

// Rows of logits at a time, by cost. `element`: bytes of a weight.
int64_t LossRows(const ModelShape& model, int64_t element);

struct LossCut {
  int64_t chunks;  // consecutive chunks of one group
  int64_t rows;    // of logits at a time, of a whole group
};
// Chunks of `rows`, at most `wanted` rows at a time.
LossCut CutLoss(int64_t rows, int64_t wanted);
// How a step cuts the loss, the same on all its ranks.
LossCut CutLoss(const StreamOptions& options);

// Chunks [first, first + chunks), the loss of which is taken together.
struct LossGroup {
  int64_t first, chunks;
  bool full;  // as many rows as any; only the last one may have fewer
};
std::vector<LossGroup> GroupChunks(const ChunkLayout& layout,
                                   int64_t loss_chunks);

// The shortest sequence that runs every segment kind a step has: two full
// chunks and the tail, a full group of the loss and the last one. The same on
// all ranks.
ChunkLayout CalibrationLayout(const StreamOptions& options);
// One layer of it: all layers run the same segments, and what is recorded for
// a step must not need more memory than the step.
StreamOptions CalibrationStep(StreamOptions options);

}  // namespace sluice::stream
