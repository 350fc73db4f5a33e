#include "planner/stream/loss_rows.h"

#include <algorithm>
#include <cmath>

namespace sluice::stream {
namespace {

int64_t WantedRows(const StreamOptions& options) {
  return options.loss_chunk_rows > 0
             ? options.loss_chunk_rows
             : LossRows(options.model, ElementBytes(options.dtype));
}

}  // namespace

int64_t LossRows(const ModelShape& model, int64_t element) {
  const double traffic =
      model.head_weights() * static_cast<double>(2 * 4 + 2 * element);
  // Operations per row and parameter: two in forward, four in backward.
  // Attention is not counted; its operations would only lower the result.
  const double operations = 6.0 * model.parameters();
  const double rows =
      traffic * kOperationsPerByte / (kHeadTrafficShare * operations);
  return std::min(
      std::max({static_cast<int64_t>(std::llround(rows)), kLeastLossRows,
                kLeastLogits / std::max<int64_t>(model.vocab, 1)}),
      std::max<int64_t>(model.hidden, 1));
}

LossCut CutLoss(int64_t rows, int64_t wanted) {
  const int64_t chunk = std::max<int64_t>(rows, 1);
  const int64_t chunks =
      std::clamp<int64_t>(wanted / chunk, 1, kMostLossChunks);
  // A short call costs as much as a full one, so calls are about equally large.
  const int64_t all = chunks * chunk, calls = (all + wanted - 1) / wanted;
  return {chunks, (all + calls - 1) / calls};
}

LossCut CutLoss(const StreamOptions& options) {
  // Rank 0 has the most rows of a chunk.
  return CutLoss(options.layout.local_rows(0, 0), WantedRows(options));
}

std::vector<LossGroup> GroupChunks(const ChunkLayout& layout,
                                   int64_t loss_chunks) {
  std::vector<LossGroup> groups;
  for (int64_t m = 0; m < layout.chunks(); m += loss_chunks) {
    const int64_t end = std::min(m + loss_chunks, layout.chunks());
    const bool full =
        end - m == loss_chunks && layout.rows(end - 1) == layout.max_rows();
    groups.push_back({m, end - m, full});
  }
  return groups;
}

ChunkLayout CalibrationLayout(const StreamOptions& options) {
  const ChunkLayout& layout = options.layout;
  const int64_t loss_chunks = CutLoss(options).chunks;
  const int64_t chunk = layout.max_rows();
  const int64_t all = layout.seq_len() / chunk;
  const int64_t last = all % loss_chunks;  // full chunks of the last group
  const int64_t full = std::min(all, std::max<int64_t>(loss_chunks + last, 2));
  return ChunkLayout(full * chunk + layout.seq_len() % chunk, chunk,
                     layout.ranks());
}

StreamOptions CalibrationStep(StreamOptions options) {
  options.layout = CalibrationLayout(options);
  // Fixes the rows, because LossRows depends on the number of layers.
  options.loss_chunk_rows = WantedRows(options);
  options.model.layers = 1;
  options.rerun_chunks = 0;  // a rerun uses the same segments
  options.rerun_layers = 1;
  return options;
}

}  // namespace sluice::stream
