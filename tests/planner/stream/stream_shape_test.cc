#include "planner/stream/stream_shape.h"

#include "gtest/gtest.h"

namespace sluice::stream {
namespace {

// Every row of a chunk is in one piece, and stored rows count up.
TEST(StreamShape, PiecesCoverAChunkOnce) {
  for (const double alpha : {0.0, 0.3, 0.5, 1.0}) {
    const StreamShape shape({.model = {.hidden = 32, .heads = 4, .kv_heads = 4},
                             .layout = ChunkLayout(71, 16, 4),
                             .alpha = alpha});
    for (int64_t m = 0; m < shape.chunks(); ++m) {
      for (const Class which : kHeadClasses) {
        int64_t row = 0, placed[2] = {0, 0};
        for (const RowPiece& piece : shape.pieces(which, m)) {
          EXPECT_EQ(piece.row, row);
          EXPECT_EQ(piece.place, placed[piece.stored]);
          row += piece.rows;
          placed[piece.stored] += piece.rows;
        }
        EXPECT_EQ(row, shape.rows(m));
        EXPECT_EQ(placed[true], shape.head_stored(which, m));
        EXPECT_EQ(placed[false], shape.head_dropped(which, m));
        if (alpha == 0 || alpha == 1) {
          EXPECT_EQ(shape.pieces(which, m).size(), 1u);
        }
      }
    }
  }
}

TEST(StreamShape, KeptStoredAndDroppedRowsAreAllRows) {
  for (const double keep : {0.0, 0.2, 0.5, 0.75}) {
    for (const double swap : {0.0, 0.25}) {
      const StreamShape shape(
          {.model = {.hidden = 32, .heads = 4, .kv_heads = 4},
           .layout = ChunkLayout(71, 16, 2),
           .fractions = {{"ffn_up", {keep, swap}}}});
      for (int64_t m = 0; m < shape.chunks(); ++m) {
        const auto rows = static_cast<double>(shape.local(m));
        const int64_t kept = shape.kept(Class::kUp, m);
        const int64_t present = shape.present(Class::kUp, m);
        EXPECT_LE(static_cast<double>(kept), keep * rows);
        EXPECT_GT(static_cast<double>(kept), keep * rows - 1);
        EXPECT_NEAR(static_cast<double>(present - kept), swap * rows, 0.5);
        EXPECT_LE(present, shape.local(m));
        EXPECT_EQ(shape.stored(Class::kUp, m), present - kept);
        EXPECT_EQ(shape.stored(Class::kGate, m), shape.local(m));
      }
    }
  }
}

TEST(Fractions, WhatNoModelHasIsRefusedInOneLine) {
  const auto complaint = [](const FractionMap& fractions,
                            const ModelShape& model = {}) {
    return std::string(CheckFractions(fractions, model).message());
  };
  EXPECT_EQ(complaint({{"norm1", {0.5, 0.5}}, {"q", {0, 1}}}), "");
  EXPECT_EQ(complaint({{"ffn_gate", {0, 0}}}), "");
  EXPECT_EQ(complaint({{"ffn_gate", {0, 0}}}, Gpt({})),
            "'ffn_gate' is no class of this model with fractions: there are "
            "norm1, q, k, v, attention_residual, norm2, ffn_up, "
            "ffn_activation");
  EXPECT_EQ(complaint({{"norm2", {0.5, 0.75}}}),
            "norm2: keep 0.5 and swap 0.75 must be 0 or more and 1 at most "
            "together");
  EXPECT_EQ(complaint({{"k", {0.5, 0.5}}}),
            "k: keep 0.5: its rows cannot be kept on the GPU");
}

}  // namespace
}  // namespace sluice::stream
