// Compares the temporaries of a segment with a count by hand.
#include "planner/stream/transients.h"

#include "gtest/gtest.h"

namespace sluice::stream {
namespace {

// The largest temporaries are those of the gradient of the first linear's
// weight: d_up in bf16 and fp32, the linear's input in fp32, the bias's sum.
TEST(TransientBytes, PeakAtTheFirstLinearsGradientIfActivationsAreKept) {
  StreamOptions options{.model = Gpt({.layers = 1,
                                      .hidden = 32,
                                      .heads = 4,
                                      .kv_heads = 4,
                                      .ffn = 256,
                                      .vocab = 50}),
                        .layout = ChunkLayout(64, 64, 1),
                        .dtype = Dtype::kBf16,
                        .round_output = true,
                        .ffn_chunk_rows = 64};
  options.fractions = KeepEverything(options.model);
  EXPECT_EQ(
      TransientBytes(options, Segment::kPostBackward, {.packs_bf16 = false}),
      Bytes(64 * (256 * (2 + 4) + 32 * 4) + 256 * 4));
}

}  // namespace
}  // namespace sluice::stream
