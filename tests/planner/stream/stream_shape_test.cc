#include "planner/stream/stream_shape.h"

#include <cmath>
#include <functional>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/stream/schedule.h"

namespace sluice::stream {
namespace {

using ::testing::ElementsAre;

// Every row of a chunk is in exactly one piece, and stored rows are
// consecutive. With 2 heads on 4 ranks, a rank has only a part of the query
// rows.
TEST(StreamShape, PiecesCoverAChunkOnce) {
  for (const auto& [alpha, heads, rank] :
       {std::tuple(0.0, 4, 0), std::tuple(0.3, 4, 0), std::tuple(0.5, 4, 0),
        std::tuple(1.0, 4, 0), std::tuple(0.0, 2, 3), std::tuple(0.3, 2, 1),
        std::tuple(0.3, 2, 2), std::tuple(1.0, 2, 3)}) {
    const StreamShape shape(
        {.model = {.hidden = 32, .heads = heads, .kv_heads = heads},
         .layout = ChunkLayout(71, 16, 4),
         .rank = rank,
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
        EXPECT_EQ(row, shape.class_rows(which, m));
        EXPECT_EQ(placed[true], shape.head_stored(which, m));
        EXPECT_EQ(placed[false], shape.head_dropped(which, m));
        if (alpha == 0 || alpha == 1) {
          EXPECT_EQ(shape.pieces(which, m).size(), 1u);
        }
      }
    }
  }
}

// The ranks get 2, 2, 2 and 1 of the tail's 7 rows.
TEST(StreamShape, APartOfTheRowsHasItsRanksQueriesAndAllKeys) {
  const StreamShape shape({.model = {.hidden = 32, .heads = 2, .kv_heads = 1},
                           .layout = ChunkLayout(71, 16, 4),
                           .rank = 3});
  EXPECT_EQ(shape.first_query(4), 4);
  EXPECT_EQ(shape.queries(4), 3);
  EXPECT_EQ(shape.class_rows(Class::kLse, 0), 8);
  EXPECT_EQ(shape.class_rows(Class::kKeyGradient, 0), 16);
  EXPECT_EQ(shape.class_rows(Class::kInput, 0), 4);
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

TEST(StreamShape, AProbeRunsOnlyTheFirstAndTheLastChunks) {
  const auto active = [](int64_t loss_rows) {
    return StreamShape({.model = {.hidden = 32, .heads = 4, .kv_heads = 4},
                        .layout = ChunkLayout(9 * 16, 16, 1),
                        .loss_chunk_rows = loss_rows,
                        .probe = true})
        .active_chunks();
  };
  EXPECT_THAT(active(16), ElementsAre(0, 1, 8));
  EXPECT_THAT(active(48), ElementsAre(0, 1, 2, 6, 7, 8));
}

TEST(StreamShape, WithEverythingKeptThereAreNoRings) {
  StreamOptions options{.model = Llama({.layers = 3,
                                        .hidden = 32,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .ffn = 44,
                                        .vocab = 50}),
                        .layout = ChunkLayout(71, 16, 2)};
  options.fractions = KeepEverything(options.model);
  const StreamShape shape(options);
  EXPECT_EQ(shape.host_bytes(), 0);
  for (const Phase phase : kPhases) {
    const RingSizes rings = shape.rings(phase);
    EXPECT_EQ(rings.staging + rings.inputs + rings.blocks + rings.gradients +
                  rings.outer,
              0);
  }
  const LayerTraffic traffic = CountTraffic(shape);
  for (const Traffic& each :
       {traffic.forward, traffic.tokens, traffic.blocks}) {
    EXPECT_EQ(each.in, 0);
    EXPECT_EQ(each.out, 0);
  }
  options.fractions["lse"] = {0, 1};
  EXPECT_GT(StreamShape(options).host_bytes(), 0);
}

// Rounding halves the bytes of o in every layer. The blocks of o are summed in
// a separate fp32 buffer.
TEST(StreamShape, ARoundedOutputHasTheActivationsBytes) {
  StreamOptions options{.model = Llama({.layers = 3,
                                        .hidden = 32,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .ffn = 44,
                                        .vocab = 50}),
                        .layout = ChunkLayout(64, 16, 2),
                        .dtype = Dtype::kBf16};
  const StreamShape exact(options);
  options.round_output = true;
  const StreamShape rounded(options);
  EXPECT_EQ(exact.row_bytes(Class::kO), 2 * 8 * 4);
  EXPECT_EQ(rounded.row_bytes(Class::kO), 2 * 8 * 2);
  EXPECT_EQ(rounded.row_bytes(Class::kLse), exact.row_bytes(Class::kLse));
  EXPECT_EQ(exact.host_bytes() - rounded.host_bytes(), 3 * 64 * 2 * 8 * 2);
  EXPECT_EQ(exact.rings(Phase::kForward).query_sum, 0);
  EXPECT_EQ(rounded.rings(Phase::kForward).query_sum, 16 * 2 * 8 * 4);
  options.dtype = Dtype::kFp32;
  EXPECT_EQ(StreamShape(options).row_bytes(Class::kO), 2 * 8 * 4);
  EXPECT_EQ(StreamShape(options).rings(Phase::kForward).query_sum, 0);
}

// Returns whether options of four layers, eight chunks and two ranks are valid
// after `change`.
bool Valid(const std::function<void(StreamOptions&)>& change) {
  StreamOptions o{.model = Llama({.layers = 4,
                                  .hidden = 32,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .ffn = 44,
                                  .vocab = 50}),
                  .layout = ChunkLayout(64, 8, 2)};
  EXPECT_EQ(Validate(o), absl::OkStatus());
  change(o);
  const absl::Status status = Validate(o);
  EXPECT_EQ(absl::IsInvalidArgument(status), !status.ok());
  return status.ok();
}

TEST(StreamOptions, AreRefusedBeyondTheirLimits) {
  const auto alpha = [](double alpha) {
    return Valid([&](auto& o) { o.alpha = alpha; });
  };
  EXPECT_TRUE(alpha(0) && alpha(1));
  EXPECT_FALSE(alpha(-0.01) || alpha(1.01) || alpha(std::nan("")));
  EXPECT_FALSE(Valid([](auto& o) { o.fractions["norm1"] = {0.5, 0.6}; }));
  const auto prefetch = [](int depth) {
    return Valid([&](auto& o) { o.prefetch_depth = depth; });
  };
  EXPECT_TRUE(prefetch(1));
  EXPECT_FALSE(prefetch(0));
  const auto rank = [](int rank) {
    return Valid([&](auto& o) { o.rank = rank; });
  };
  EXPECT_TRUE(rank(0) && rank(1));
  EXPECT_FALSE(rank(-1) || rank(2));
  EXPECT_FALSE(Valid([](auto& o) { o.layout = ChunkLayout(0, 8, 2); }));
  const auto positions = [](int64_t positions) {
    return Valid([&](auto& o) {
      o.model = Gpt(o.model);
      o.model.max_positions = positions;
    });
  };
  EXPECT_TRUE(positions(64));
  EXPECT_FALSE(positions(63));
}

TEST(StreamOptions, NoMoreChunksAndLayersRunAgainThanThereAre) {
  const auto layers = [](int64_t layers) {
    return Valid([&](auto& o) { o.rerun_layers = layers; });
  };
  EXPECT_TRUE(layers(1) && layers(4));
  EXPECT_FALSE(layers(0) || layers(5));
  const auto chunks = [](int64_t chunks, double alpha,
                         const FractionMap& fractions) {
    return Valid([&](auto& o) {
      o.rerun_chunks = chunks;
      o.alpha = alpha;
      o.fractions = fractions;
    });
  };
  EXPECT_TRUE(chunks(0, 0, {}) && chunks(8, 0, {}));
  EXPECT_FALSE(chunks(-1, 0, {}) || chunks(9, 0, {}));
  // If chunks run again, nothing of a free class may be kept or swapped.
  EXPECT_FALSE(chunks(1, 0.5, {}));
  EXPECT_TRUE(chunks(1, 0.5, DropFree(Llama({}), {})));
  EXPECT_FALSE(chunks(1, 0, {{"norm1", {0, 0.5}}}));
  EXPECT_FALSE(chunks(1, 0, {{"norm1", {0.5, 0}}}));
  EXPECT_TRUE(chunks(1, 0, {{"lse", {0, 1}}}));
  EXPECT_TRUE(chunks(0, 0.5, {}));
}

TEST(Fractions, ImpossibleFractionsAreRefusedInOneLine) {
  const auto complaint = [](const FractionMap& fractions,
                            const ModelShape& model = {}) {
    return std::string(CheckFractions(fractions, model).message());
  };
  EXPECT_EQ(complaint({{"norm1", {0.5, 0.5}}, {"q", {0, 1}}}), "");
  EXPECT_EQ(complaint({{"ffn_gate", {0, 0}}}), "");
  EXPECT_EQ(complaint({{"ffn_gate", {0, 0}}}, Gpt({})),
            "'ffn_gate' is no class of this model: there are norm1, q, k, v, "
            "attention_output, lse, attention_residual, norm2, ffn_up, "
            "ffn_activation, layer_input, output_gradient, query_gradient, "
            "key_gradient, value_gradient");
  EXPECT_EQ(complaint({{"norm2", {0.5, 0.75}}}),
            "norm2: keep 0.5 and swap 0.75 must be 0 or more and 1 at most "
            "together");
  EXPECT_EQ(complaint({{"k", {0.5, 0.5}}}),
            "k: keep 0.5: it stays on the GPU whole or not at all, 1 or 0");
  EXPECT_EQ(complaint({{"lse", {0, 0.5}}}),
            "lse: keep 0 and swap 0.5 must be 1 together: it cannot be "
            "computed again");
  EXPECT_EQ(complaint(KeepEverything(Gpt({})), Gpt({})), "");
}

}  // namespace
}  // namespace sluice::stream
