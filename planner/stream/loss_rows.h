// How the loss cuts its rows: how many rows of logits are computed at a time,
// and how many chunks share the calls.
//
// Every call of the loss reads and writes the whole head gradient [vocab,
// hidden] in fp32 and reads the head's weights twice, however few rows it has.
// The number of rows is chosen so that this traffic is a small part of the
// step's computation, but the logits [rows, vocab] are never larger than the
// head gradient itself. Chunks with fewer rows are computed in groups.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stream/options.h"

namespace sluice::stream {

// Operations that take as long as one byte of memory traffic. A CPU core does 5
// to 10, an H100 200 to 300.
inline constexpr double kOperationsPerByte = 100;
// Limit of the head's traffic as a share of the step's computation.
inline constexpr double kHeadTrafficShare = 0.05;
// With fewer rows a matrix multiplication leaves compute units idle.
inline constexpr int64_t kLeastLossRows = 128;
// With fewer logits a GPU is idle between launches: each call launches about
// twenty kernels, however short. In calls of 128 rows of 256 logits, the loss
// of 16,384 rows takes an H100 44 ms, mostly for launches.
inline constexpr int64_t kLeastLogits = 1 << 22;
// A calibration runs up to two groups of chunks, so groups must be short.
inline constexpr int64_t kMostLossChunks = 16;

// Returns how many rows of logits are computed at a time. A weight has
// `element` bytes.
int64_t LossRows(const ModelShape& model, int64_t element);

struct LossCut {
  int64_t chunks;  // consecutive chunks in a group
  int64_t rows;    // rows of logits at a time in a full group
};
// Cuts chunks of `rows` rows, with at most `wanted` rows at a time.
LossCut CutLoss(int64_t rows, int64_t wanted);
// Cuts a step's loss, the same on all ranks.
LossCut CutLoss(const StreamOptions& options);

// The chunks [first, first + chunks) share the calls of the loss.
struct LossGroup {
  int64_t first, chunks;
  bool full;  // only the last group may have fewer rows
};
std::vector<LossGroup> GroupChunks(const ChunkLayout& layout,
                                   int64_t loss_chunks);

// Returns the shortest sequence that runs every segment kind of a step, the
// same on all ranks: at least two full chunks and the tail, and a full group of
// the loss and the last group.
ChunkLayout CalibrationLayout(const StreamOptions& options);
// Returns the options of a calibration. It has one layer, so that it needs no
// more memory than the step; all layers run the same segments.
StreamOptions CalibrationStep(StreamOptions options);

}  // namespace sluice::stream
