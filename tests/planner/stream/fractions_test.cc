#include "planner/stream/fractions.h"

#include "gtest/gtest.h"
#include "planner/stream/profile.h"
#include "planner/stream/stream_shape.h"

namespace sluice::stream {
namespace {

ModelShape ThreeLayers() {
  return Llama({.layers = 3,
                .hidden = 32,
                .heads = 4,
                .kv_heads = 2,
                .ffn = 44,
                .vocab = 50});
}

TEST(FillFractions, HasEveryClassAndKeepsGivenFractions) {
  const FractionMap given = {{"layer_input", {.keep = 1, .swap = 0}},
                             {"norm2", {.keep = 0.25, .swap = 0.5}}};
  const FractionMap filled = FillFractions(ThreeLayers(), given, 0.5);
  EXPECT_EQ(filled.size(), KeepEverything(ThreeLayers()).size());
  EXPECT_EQ(filled.at("layer_input"), given.at("layer_input"));
  EXPECT_EQ(filled.at("norm2"), given.at("norm2"));
  EXPECT_EQ(filled.at("q"), (ClassFractions{0, 0.5}));
  EXPECT_EQ(filled.at("lse"), (ClassFractions{0, 1}))
      << "lse is not a free class";
  EXPECT_TRUE(CheckFractions(filled, ThreeLayers()).ok());
}

// Filled-in fractions are those that StreamShape assumes.
TEST(FillFractions, LeavesTheStepUnchanged) {
  StreamOptions options{
      .model = ThreeLayers(), .layout = ChunkLayout(71, 16, 2), .alpha = 0.5};
  options.fractions = {{"lse", {.keep = 1, .swap = 0}}};
  StreamOptions filled = options;
  filled.fractions =
      FillFractions(ThreeLayers(), options.fractions, options.alpha);
  for (const ClassTraits& c : kClasses) {
    EXPECT_EQ(StreamShape(filled).fractions(c.which),
              StreamShape(options).fractions(c.which))
        << c.name;
  }
}

TEST(WithoutKept, SwapsWhatCannotBeRecomputedAndLeavesGivenFractions) {
  const FractionMap given = {{"lse", {.keep = 1, .swap = 0}},
                             {"norm2", {.keep = 0.5, .swap = 0.25}}};
  FractionMap all = KeepEverything(ThreeLayers());
  all["norm2"] = given.at("norm2");
  const FractionMap less = WithoutKept(all, given);
  EXPECT_TRUE(CheckFractions(less, ThreeLayers()).ok());
  for (const auto& [name, f] : less) {
    if (given.contains(name)) {
      EXPECT_EQ(f, given.at(name));
    } else {
      EXPECT_EQ(f.keep, 0) << name;
    }
  }
  EXPECT_EQ(less.at("layer_input").swap, 1);
}

// The reserve holds the resident buffers outside classes, because a plan knows
// only classes and fills the other memory with kept rows.
TEST(Profile, ReservesMemoryForResidentBuffersOutsideClasses) {
  StreamOptions options{.model = ThreeLayers(),
                        .layout = ChunkLayout(7100, 710, 2)};
  options.fractions = {{"output_gradient", {.keep = 1, .swap = 0}},
                       {"layer_input", {.keep = 1, .swap = 0}}};
  const StreamShape shape(options);
  const int64_t told = shape.layers * shape.class_bytes(Class::kInput);
  const int64_t beside = shape.class_bytes(Class::kInput) +
                         shape.class_bytes(Class::kOutputGradient);
  EXPECT_GE(shape.resident_bytes(), told + beside);
  EXPECT_GE(Profile(options, {}).keep_reserve,
            Bytes(shape.resident_bytes() - told));
}

}  // namespace
}  // namespace sluice::stream
