// The pieces of a streamed step against plain torch, where a whole step's
// gradients would not show a defect.
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "client/torch/math/attention_blocks.h"
#include "client/torch/math/chunked_loss.h"
#include "client/torch/math/rope.h"
#include "client/torch/stream/stream_shape.h"
#include "gtest/gtest.h"

namespace sluice::runtime {
namespace {

double Largest(const at::Tensor& t) { return t.abs().max().item<double>(); }

TEST(Rope, IsExactAtPositionsInTheMillions) {
  const int64_t position = 9'876'543, dim = 64;
  const RopeTables tables = MakeRopeTables(position, 1, dim, 10000);
  for (int64_t i = 0; i < dim / 2; ++i) {
    const double angle =
        double(position) * std::pow(10000.0, -2.0 * double(i) / double(dim));
    EXPECT_NEAR(tables.cos[0][0][i].item<double>(), std::cos(angle), 1e-6);
    EXPECT_NEAR(tables.sin[0][0][i].item<double>(), std::sin(angle), 1e-6);
  }
}

TEST(Rope, TurnsBack) {
  const RopeTables tables = MakeRopeTables(1000, 5, 8, 10000);
  const at::Tensor x = at::randn({5, 3, 8});
  at::Tensor turned = x.clone();
  ApplyRope(turned, tables);
  EXPECT_GT(Largest(turned - x), 0.1);
  ApplyRope(turned, tables, /*inverse=*/true);
  EXPECT_LT(Largest(turned - x), 1e-5);
}

TEST(Attention, BlocksMergeToTheWholeAlsoWhereScoresAreHuge) {
  // Differences of lse far above 88, where exp overflows.
  const at::Tensor q = at::randn({7, 2, 8}) * 60;
  const at::Tensor k = at::randn({24, 2, 8}) * 60;
  const at::Tensor v = at::randn({24, 2, 8});
  const BlockOutput whole = AttendBlock(q, k, v, false);
  BlockOutput merged =
      AttendBlock(q, k.narrow(0, 0, 8), v.narrow(0, 0, 8), false);
  at::Tensor output = merged.output.clone(), lse = merged.lse.clone();
  for (const int64_t row : {8, 16}) {
    MergeBlock(output, lse,
               AttendBlock(q, k.narrow(0, row, 8), v.narrow(0, row, 8), false));
  }
  EXPECT_LT(Largest(output - whole.output), 1e-4);
  EXPECT_LT(Largest(lse - whole.lse) / Largest(whole.lse), 1e-6);
}

TEST(ChunkedLoss, DoesNotDependOnRowsAtOnceAndSurvivesLargeLogits) {
  const at::Tensor x = at::randn({11, 8}) * 100;
  const at::Tensor weight = at::randn({30, 8});
  at::Tensor labels = at::randint(30, {11}, at::kLong);
  labels[3] = kIgnoredLabel;
  const auto run = [&](int64_t rows) {
    at::Tensor loss = at::zeros({}, at::kDouble);
    at::Tensor gradient = at::zeros({30, 8});
    const at::Tensor dx =
        LossForwardBackward(x, labels, weight, 0.1, rows, loss, gradient);
    EXPECT_EQ(Largest(dx[3]), 0);
    return at::cat(
        {loss.to(at::kFloat).view({1}), dx.flatten(), gradient.flatten()});
  };
  const at::Tensor whole = run(11);
  EXPECT_TRUE(std::isfinite(Largest(whole)));
  for (const int64_t rows : {1, 4, 100}) {
    EXPECT_LT(Largest(run(rows) - whole) / Largest(whole), 1e-6);
  }
}

TEST(ChunkedLoss, AllLabelsIgnoredIsNoLoss) {
  at::Tensor loss = at::zeros({}, at::kDouble);
  at::Tensor gradient = at::zeros({30, 8});
  const at::Tensor labels = at::zeros({4}, at::kLong).fill_(kIgnoredLabel);
  const at::Tensor dx = LossForwardBackward(
      at::randn({4, 8}), labels, at::randn({30, 8}), 1, 2, loss, gradient);
  EXPECT_EQ(loss.item<double>(), 0);
  EXPECT_EQ(Largest(dx), 0);
}

// Every row of a chunk is in one piece, and stored rows count up.
TEST(StreamShape, PiecesCoverAChunkOnce) {
  for (const double alpha : {0.0, 0.3, 0.5, 1.0}) {
    const StreamShape shape({.model = {.hidden = 32, .heads = 4, .kv_heads = 4},
                             .layout = ChunkLayout(71, 16, 4),
                             .stream = {.alpha = alpha}});
    for (int64_t m = 0; m < shape.chunks(); ++m) {
      for (const Saved which : kHeadSaved) {
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
           .stream = {.fractions = {{"ffn_up", {keep, swap}}}}});
      for (int64_t m = 0; m < shape.chunks(); ++m) {
        const auto rows = static_cast<double>(shape.local(m));
        const int64_t kept = shape.kept(Saved::kUp, m);
        const int64_t present = shape.present(Saved::kUp, m);
        EXPECT_LE(static_cast<double>(kept), keep * rows);
        EXPECT_GT(static_cast<double>(kept), keep * rows - 1);
        EXPECT_NEAR(static_cast<double>(present - kept), swap * rows, 0.5);
        EXPECT_LE(present, shape.local(m));
        EXPECT_EQ(shape.stored(Saved::kUp, m), present - kept);
        EXPECT_EQ(shape.stored(Saved::kGate, m), shape.local(m));
      }
    }
  }
}

TEST(Fractions, WhatNoModelHasIsRefusedInOneLine) {
  const auto complaint = [](const FractionMap& fractions,
                            Arch arch = Arch::kLlama) {
    return std::string(CheckFractions(fractions, arch).message());
  };
  EXPECT_EQ(complaint({{"norm1", {0.5, 0.5}}, {"q", {0, 1}}}), "");
  EXPECT_EQ(complaint({{"ffn_gate", {0, 0}}}), "");
  EXPECT_EQ(complaint({{"ffn_gate", {0, 0}}}, Arch::kGpt),
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
}  // namespace sluice::runtime
