#include "planner/stream/loss_rows.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::stream {
namespace {

ModelShape ModelWithVocabulary(int64_t layers, int64_t hidden, int64_t vocab) {
  return {
      .layers = layers, .hidden = hidden, .ffn = 4 * hidden, .vocab = vocab};
}

// If the head does nearly all of the work, the logits are as large as the
// head's gradient.
TEST(LossRows, AreAsManyAsHiddenIfTheVocabularyIsLarge) {
  for (const int64_t hidden : {128, 256, 1024}) {
    EXPECT_EQ(LossRows(ModelWithVocabulary(2, hidden, 32768), 4), hidden);
  }
}

// In Llama 8B more rows would only take memory: 256 rows of fp32 logits take
// 125 MiB.
TEST(LossRows, AreFewerIfTheHeadIsASmallPartOfTheModel) {
  const ModelShape model = ModelWithVocabulary(32, 4096, 128256);
  const int64_t rows = LossRows(model, 2);
  EXPECT_GE(rows, kLeastLossRows);
  EXPECT_LT(rows, 512);
  // The head's gradient is read and written, its bf16 weights read twice.
  EXPECT_NEAR(static_cast<double>(rows),
              4096.0 * 128256 * 12 * 100 / (0.05 * 6 * model.parameters()), 1);
}

TEST(LossRows, DoNotDependOnTheChunk) {
  for (const int64_t chunk : {64, 128, 256, 512, 1024, 2048}) {
    StreamOptions options{.model = ModelWithVocabulary(2, 256, 32768),
                          .layout = ChunkLayout(4096, chunk, 1)};
    const LossCut cut = CutLoss(options);
    EXPECT_EQ(cut.rows, 256);
    EXPECT_EQ(cut.chunks, std::max<int64_t>(256 / chunk, 1));
  }
}

TEST(LossRows, AChunkIsCutIntoEqualCalls) {
  EXPECT_EQ(CutLoss(2048, 256).rows, 256);
  EXPECT_EQ(CutLoss(300, 256).rows, 150);
  EXPECT_EQ(CutLoss(300, 256).chunks, 1);
}

TEST(LossRows, AreAtMostTheWantedRows) {
  for (int64_t rows = 0; rows < 70; ++rows) {
    for (int64_t wanted = 1; wanted < 70; ++wanted) {
      const LossCut cut = CutLoss(rows, wanted);
      EXPECT_GE(cut.chunks, 1);
      EXPECT_LE(cut.chunks, kMostLossChunks);
      EXPECT_GE(cut.rows, 1);
      EXPECT_LE(cut.rows, wanted);
    }
  }
}

// Every chunk is in one group, and only the last group is shorter.
TEST(LossGroups, CoverAllChunksOnce) {
  for (int64_t seq_len = 1; seq_len < 60; ++seq_len) {
    for (int64_t size = 1; size < 6; ++size) {
      const ChunkLayout layout(seq_len, 8, 1);
      int64_t next = 0;
      for (const LossGroup& group : GroupChunks(layout, size)) {
        EXPECT_EQ(group.first, next);
        next += group.chunks;
        const int64_t rows = layout.local_rows_before(next, 0) -
                             layout.local_rows_before(group.first, 0);
        EXPECT_EQ(group.full, rows == size * layout.max_rows());
        if (!group.full) {
          EXPECT_EQ(next, layout.chunks());
        }
      }
      EXPECT_EQ(next, layout.chunks());
    }
  }
}

// The calibration's last group has the rows of the sequence's last group. The
// calibration has a full group if the sequence has one, and two full chunks if
// the sequence has two.
TEST(CalibrationLayout, HasEveryKindOfGroup) {
  for (int64_t seq_len = 1; seq_len < 100; ++seq_len) {
    for (int64_t size = 1; size < 6; ++size) {
      const ChunkLayout layout(seq_len, 8, 2);
      StreamOptions options{.layout = layout};
      options.loss_chunk_rows = size * layout.local_rows(0, 0);
      const ChunkLayout short_one = CalibrationLayout(options);
      EXPECT_LE(short_one.seq_len(), seq_len);
      EXPECT_EQ(short_one.max_rows(), layout.max_rows());
      const auto groups = GroupChunks(layout, size);
      const auto few = GroupChunks(short_one, size);
      EXPECT_EQ(few.front().full, groups.front().full);
      EXPECT_EQ(few.back().full, groups.back().full);
      EXPECT_EQ(few.back().chunks, groups.back().chunks);
      EXPECT_EQ(short_one.rows(short_one.chunks() - 1),
                layout.rows(layout.chunks() - 1));
      EXPECT_GE(short_one.seq_len() / 8, std::min<int64_t>(2, seq_len / 8));
      EXPECT_LE(short_one.chunks(), std::max<int64_t>(2 * size, 3));
    }
  }
}

// The rows per call depend on the number of layers, but a calibration of one
// layer must cut the loss as the whole model does.
TEST(CalibrationStep, CutsTheLossAsTheWholeStepDoes) {
  for (const int64_t layers : {1, 2, 4, 32}) {
    for (const int64_t vocab : {256, 32000, 128256}) {
      const StreamOptions options{.model = Llama({.layers = layers,
                                                  .hidden = 4096,
                                                  .heads = 32,
                                                  .kv_heads = 8,
                                                  .ffn = 14336,
                                                  .vocab = vocab}),
                                  .layout = ChunkLayout(1 << 20, 4096, 1)};
      const LossCut whole = CutLoss(options);
      const LossCut one = CutLoss(CalibrationStep(options));
      EXPECT_EQ(one.chunks, whole.chunks) << layers << " of " << vocab;
      EXPECT_EQ(one.rows, whole.rows) << layers << " of " << vocab;
    }
  }
}

// The options may rerun more layers than the calibration step has.
TEST(CalibrationStep, IsAValidStepOfOneLayer) {
  StreamOptions options{.model = Llama({.layers = 4,
                                        .hidden = 64,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .ffn = 128,
                                        .vocab = 256}),
                        .layout = ChunkLayout(1000, 64, 1),
                        .alpha = 0};
  options.rerun_chunks = 10;
  options.rerun_layers = 4;
  const StreamOptions step = CalibrationStep(options);
  EXPECT_TRUE(Validate(step).ok()) << Validate(step);
  EXPECT_EQ(step.model.layers, 1);
  EXPECT_EQ(step.rerun_chunks, 0);
  EXPECT_LT(step.layout.seq_len(), 1000);
}

}  // namespace
}  // namespace sluice::stream
