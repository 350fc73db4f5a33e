// How the loss cuts its rows: how many rows of logits are made at a time, and
// over how many chunks at once. Pure arithmetic.
//
// Every call of the loss reads and writes the whole head gradient [vocab,
// hidden] in fp32 and reads the head's weights twice, however few rows it has.
// The number of rows is chosen so that this traffic is a small part of the
// step's computation, but the logits [rows, vocab] are never larger than the
// head gradient itself. A chunk with fewer rows shares its calls with the
// chunks after it.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stream/options.h"

namespace sluice::stream {

// Operations that take as long as one byte of memory traffic: 5 to 10 for a
// core, 200 to 300 for an H100.
inline constexpr double kOperationsPerByte = 100;
// Limit of the head's traffic as a share of the step's computation.
inline constexpr double kHeadTrafficShare = 0.05;
// Fewer rows leave units of a matrix multiplication idle.
inline constexpr int64_t kLeastLossRows = 128;
// Fewer logits leave a GPU idle: each call is about twenty kernels, however
// short. With 128 rows of 256 the loss of 16,384 rows took an H100 44 ms,
// mostly for launches.
inline constexpr int64_t kLeastLogits = 1 << 22;
// A calibration runs at most two groups, so groups must be short.
inline constexpr int64_t kMostLossChunks = 16;

// Returns the rows of logits at a time, by cost. `element`: bytes of a weight.
int64_t LossRows(const ModelShape& model, int64_t element);

struct LossCut {
  int64_t chunks;  // consecutive chunks in a group
  int64_t rows;    // rows of logits at a time, of a full group
};
// Cuts chunks of `rows` rows, with at most `wanted` rows at a time.
LossCut CutLoss(int64_t rows, int64_t wanted);
// Returns how a step cuts the loss, the same on all ranks.
LossCut CutLoss(const StreamOptions& options);

// Chunks [first, first + chunks). Their losses are computed together.
struct LossGroup {
  int64_t first, chunks;
  bool full;  // only the last group may have fewer rows
};
std::vector<LossGroup> GroupChunks(const ChunkLayout& layout,
                                   int64_t loss_chunks);

// Returns the shortest sequence that runs every segment kind of a step: two
// full chunks and the tail, a full group of the loss and the last one. The same
// on all ranks.
ChunkLayout CalibrationLayout(const StreamOptions& options);
// Returns the options of a calibration with one layer: all layers run the same
// segments, and a calibration must not need more memory than the step.
StreamOptions CalibrationStep(StreamOptions options);

}  // namespace sluice::stream
