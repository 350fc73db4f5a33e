// Tests the closed form of a layer's time against sums computed by hand and
// against a simulated layer.
#include "planner/stream/layer_time.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "tests/planner/stream/simulated_layer.h"

namespace sluice::stream {
namespace {

constexpr BackwardOrder kTimedOrders[] = {BackwardOrder::kKeysOuter,
                                          BackwardOrder::kQueriesOuter};
constexpr int64_t kChunk = 512;

StreamOptions TimedOptions(int64_t chunks, BackwardOrder order, int prefetch,
                           double alpha) {
  return {.model = Llama({.layers = 4,
                          .hidden = 256,
                          .heads = 8,
                          .kv_heads = 2,
                          .ffn = 688,
                          .vocab = 256}),
          .layout = ChunkLayout(kChunk * chunks, kChunk, 1),
          .dtype = Dtype::kBf16,
          .alpha = alpha,
          .prefetch_depth = prefetch,
          .order = order};
}

StreamShape TimedShape(int64_t chunks, BackwardOrder order, int prefetch,
                       double alpha) {
  return StreamShape(TimedOptions(chunks, order, prefetch, alpha));
}

// Returns a chunk's seconds. A block takes `times` times as long as the chunk's
// local forward (qkv and post).
ChunkCompute Chunk(double times) {
  return {.qkv = 0.2,
          .block = times,
          .post = 0.8,
          .post_backward = 2.5,
          .block_backward = 2.5 * times,
          .qkv_backward = 0.5};
}

LayerCompute Whole(const ChunkCompute& chunk, int64_t chunks) {
  const double n = double(chunks);
  return {.keys = n * (n - 1) / 2 * chunk.block,
          .forward = n * (chunk.qkv + chunk.block / 2 + chunk.post),
          .tokens = n * chunk.post_backward,
          .blocks = n * n / 2 * chunk.block_backward,
          .projections = n * chunk.qkv_backward};
}

TEST(LayerTime, OverLinksWithoutALimitALayerTakesItsComputeTime) {
  for (const int64_t chunks : {1, 2, 7}) {
    const StreamShape shape = TimedShape(chunks, kTimedOrders[0], 2, 1);
    const LayerCompute compute = Whole(Chunk(3), chunks);
    EXPECT_DOUBLE_EQ(TimeLayer(shape, compute, {}).total(), compute.total());
    const EndsCompute ends{.embed = 1, .loss = 2, .embed_backward = 4};
    EXPECT_DOUBLE_EQ(TimeEnds(shape, ends, {}), 7);
  }
}

TEST(LayerTime, FasterComputeOrLinksNeverTakeLonger) {
  for (const auto& [chunks, prefetch] :
       {std::pair(2, 2), {4, 1}, {8, 2}, {13, 2}, {13, 4}, {64, 2}}) {
    for (const BackwardOrder order : kTimedOrders) {
      const StreamShape shape = TimedShape(chunks, order, prefetch, 0.5);
      for (double speed = 1e5; speed < 1e8; speed *= 1.5) {
        double before = std::numeric_limits<double>::infinity();
        for (double times = 20; times > 1e-3; times /= 1.4) {
          const LayerCompute compute = Whole(Chunk(times), chunks);
          const double total =
              TimeLayer(shape, compute, {speed, speed}).total();
          EXPECT_LE(total, before * (1 + 1e-12)) << chunks << " " << speed;
          EXPECT_LE(TimeLayer(shape, compute, {2 * speed, speed}).total(),
                    total * (1 + 1e-12));
          before = total;
        }
      }
    }
  }
}

TEST(LayerTime, CopiesThatNoOtherChunksComputeCoversAreAdded) {
  constexpr double kSpeed = 1e6;
  for (const int64_t chunks : {2, 4, 32}) {
    const StreamShape shape =
        TimedShape(chunks, BackwardOrder::kQueriesOuter, 2, 0);
    ChunkCompute chunk = Chunk(1000);  // hides all copies that compute can hide
    chunk.post_backward = 1000;
    const LayerCompute compute = Whole(chunk, chunks);
    const auto seconds = [&](std::initializer_list<Class> classes) {
      int64_t bytes = 0;
      for (const Class which : classes) bytes += shape.chunk_bytes(which, 0);
      return double(bytes) / kSpeed;
    };
    const double x = seconds({Class::kInput}), o = seconds({Class::kO});
    const double kv = seconds({Class::kK, Class::kV});
    const double d_o = seconds({Class::kOutputGradient});
    const double q = seconds({Class::kQ});
    const double sums = seconds({Class::kKeyGradient, Class::kValueGradient});
    const LayerSeconds layer = TimeLayer(shape, compute, {kSpeed, kSpeed});
    EXPECT_DOUBLE_EQ(layer.forward, compute.keys + compute.forward);
    // The first chunk's rows are copied while the layer above computes its last
    // projections and copies dX out.
    EXPECT_NEAR(layer.tokens - compute.tokens,
                (2 * x + o - chunk.qkv_backward - x) + (x + d_o + q + kv),
                1e-9);
    // The first block's rows are copied during the last chunk of the token
    // phase. dX is exposed, and so are the sums, less the time of a chunk's
    // projections.
    EXPECT_NEAR(layer.attention - compute.blocks - compute.projections,
                x + 2 * sums - chunk.qkv_backward, 1e-9);
  }
}

// The first three of the four layers run again.
TEST(LayerTime, ARerunTakesAForwardOverTheFirstChunks) {
  StreamOptions options = TimedOptions(8, kTimedOrders[0], 2, 0.5);
  options.rerun_chunks = 2;
  const LayerCompute compute = Whole(Chunk(3), 2);
  for (const double speed : {1e5, 1e8}) {  // copies dominate, then compute
    EXPECT_DOUBLE_EQ(TimeRerun(options, 3 * compute.keys, 3 * compute.forward,
                               {speed, speed}),
                     3 * TimeLayer(TimedShape(2, kTimedOrders[0], 2, 0.5),
                                   compute, {speed, speed})
                             .forward);
  }
}

// The least and the largest ratio of the closed form's time to the simulated.
struct Range {
  double least = 1e9, most = 0;
  void Add(double ratio) {
    least = std::min(least, ratio);
    most = std::max(most, ratio);
  }
};

TEST(LayerTime, AgreesWithASimulationOfTheLayer) {
  Range forward, tokens, attention, all;
  for (const int64_t chunks : {1, 2, 3, 4, 8, 24}) {
    for (const BackwardOrder order : kTimedOrders) {
      for (const int prefetch : {1, 2, 4}) {
        for (const double alpha : {0.0, 1.0}) {
          for (const double times : {0.3, 1.0, 4.0}) {
            for (const double speed : {2e5, 1e6, 5e6}) {
              const StreamShape shape =
                  TimedShape(chunks, order, prefetch, alpha);
              const LinkSpeeds links{speed, speed};
              const LayerSeconds ours =
                  TimeLayer(shape, Whole(Chunk(times), chunks), links);
              const LayerSeconds played =
                  SimulateLayer(shape, Chunk(times), links);
              forward.Add(ours.forward / played.forward);
              tokens.Add(ours.tokens / played.tokens);
              attention.Add(ours.attention / played.attention);
              all.Add(ours.total() / played.total());
            }
          }
        }
      }
    }
  }
  for (const auto& [name, range] :
       {std::pair("forward", forward), std::pair("tokens", tokens),
        std::pair("attention", attention), std::pair("all", all)}) {
    fmt::print("{}: {:.3f} to {:.3f} of the layer played through\n", name,
               range.least, range.most);
  }
  EXPECT_GT(all.least, 0.85);
  EXPECT_LT(all.most, 1.12);
}

}  // namespace
}  // namespace sluice::stream
