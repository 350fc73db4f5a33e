// Tests that the oracle detects a step that lacks one kind of waits. So each
// kind is needed, and tests of the streamed step find its removal.
//
// A wait is removed between the step and its copy engine. The awaited copies
// are so slow that they still run. SLUICE_POISON, without which this file is
// not built, ensures that no operation reads the right old value by chance.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/torch/careless_engine.h"
#include "tests/torch/stream_fixture.h"
#include "tests/torch/stream_oracle.h"

namespace sluice::runtime {
namespace {

using client::CarelessEngine;
using Order = stream::BackwardOrder;

constexpr auto& kCompute = CarelessEngine::kCompute;
constexpr double kLimit = 1e-4;  // as in stream_gradient_test, in fp32

// Waits of `waiter` (compute, or copies of a kind) for copies of a kind.
struct StepWait {
  const char* name;
  std::string waiter, waited;
  int64_t seq_len;  // at which the waits find copies under way
  Order order = Order::kKeysOuter;
  // Classes that are resident, so that no other wait implies this wait.
  std::vector<const char*> resident = {};

  bool operator==(const StepWait& other) const {
    return waiter == other.waiter && waited == other.waited;
  }
  friend void PrintTo(const StepWait& wait, std::ostream* out) {
    *out << wait.waiter << " for " << wait.waited;
  }
};

// Returns whether to leave out a wait for a copy that is still running.
using LeaveOut = std::function<bool(const StepWait& wait)>;

// Sequences of two chunks; of three, so that a phase ends in another slot than
// it began in; and of so many that every ring reuses its slots.
constexpr int64_t kShort = 32, kThree = 48, kLong = 135;

// Copies of attention's backward, whichever side is outer.
constexpr char kOuter[] = "outer chunk in", kInner[] = "inner chunk in",
               kGradientsIn[] = "gradients of inner chunk in",
               kGradientsOut[] = "gradients of inner chunk out";

// All waits of steps of these lengths, as AreAllThatAStepMakes checks.
const StepWait kWaits[] = {
    {"ForALayersInput", kCompute, "x in", kLong},
    {"ForKeysAndValues", kCompute, "k, v in", kLong},
    {"ForTheLastLayersOutput", kCompute, "y in", kLong},
    {"ForSavedRows", kCompute, "saved rows in", kLong},
    {"ForOuterKeys",
     kCompute,
     kOuter,
     kLong,
     Order::kKeysOuter,
     {"q", "attention_output", "lse", "output_gradient", "query_gradient"}},
    {"ForInnerQueries", kCompute, kInner, kLong},
    {"ForQueryGradientsSoFar", kCompute, kGradientsIn, kLong},
    {"ForOuterQueries",
     kCompute,
     kOuter,
     kLong,
     Order::kQueriesOuter,
     {"k", "v", "key_gradient", "value_gradient"}},
    {"ForInnerKeys", kCompute, kInner, kLong, Order::kQueriesOuter},
    {"ForKeyGradientsSoFar", kCompute, kGradientsIn, kLong,
     Order::kQueriesOuter},
    {"ForInputAndGradient", kCompute, "x, dX in", kShort},
    {"ForTheEmbeddingsGradient", kCompute, "dX in", kLong},
    {"ForAStagingSlotOfTheEmbedding", kCompute, "embedding out", kLong},
    {"ForAStagingSlotOfForward", kCompute, "layer out", kLong},
    {"ForAStagingSlotOfTheLoss", kCompute, "dY out", kLong},
    {"ForAStagingSlotOfBackward", kCompute, "q, k, v again out", kLong},
    {"ForTheStagingOfThePhaseBefore", kCompute, "dX out", kThree},
    {"ForASlotOfQueryGradients", kCompute, kGradientsOut, kLong},
    {"ForASlotOfKeyGradients", kCompute, kGradientsOut, kLong,
     Order::kQueriesOuter},
    {"OfALayersInputForTheEmbedding", "x in", "embedding out", kShort},
    {"OfALayersInputForTheLayerBefore", "x in", "layer out", kShort},
    {"OfKeysAndValuesForTheirCopyOut", "k, v in", "q, k, v out", kLong},
    {"OfSavedRowsForTheLossGradient", "saved rows in", "dY out", kShort},
    {"OfSavedRowsForTheGradientOfTheLayerAbove", "saved rows in", "dX out",
     kShort},
    {"OfInnerQueriesForTheirOutputsGradient",
     kInner,
     "dO, dX out",
     kShort,
     Order::kKeysOuter,
     {"q"}},
    {"OfRecomputedInnerQueries", kInner, "q, k, v again out", kShort},
    {"OfRecomputedInnerKeys", kInner, "q, k, v again out", kShort,
     Order::kQueriesOuter},
    {"OfQueryGradientsForTheirCopyOut", kGradientsIn, kGradientsOut, kLong},
    {"OfKeyGradientsForTheirCopyOut", kGradientsIn, kGradientsOut, kLong,
     Order::kQueriesOuter},
    {"OfTheEmbeddingsGradientForItsCopyOut", "dX in", "dX out", kShort},
};

StepCase CaseOf(int64_t seq_len, Order order) {
  return {// Heads are narrow, so that attention's staging ring lies where the
          // staging ring of the next layer's token phase does.
          .model = stream::Llama({.layers = 2,
                                  .hidden = 64,
                                  .heads = 4,
                                  .kv_heads = 4,
                                  .head_size = 8,
                                  .ffn = 44,
                                  .vocab = 50}),
          .seq_len = seq_len,
          .chunk = 16,
          .stream = {.alpha = 0.5, .prefetch_depth = 3, .order = order}};
}
// Returns a link speed at which a step takes a few seconds.
double SlowLink(int64_t seq_len) { return seq_len == kLong ? 1e6 : 1e5; }

// Returns the gradient error; NaN if a gradient is NaN.
double ErrorOf(StepCase c, const LeaveOut& leave_out) {
  c.wrap_engine = [&](client::CopyEngine* engine) {
    return std::make_unique<CarelessEngine>(
        engine, [&](const CarelessEngine::StepWait& wait) {
          return wait.waited != kCompute && wait.under_way &&
                 leave_out({"", wait.waiter, wait.waited, 0});
        });
  };
  const StepData data = MakeStepData(c, 5);
  const OracleResult expected =
      RunOracle(c.model, data.weights, data.tokens, data.labels, data.count);
  StepOutcome got = RunStep(c, data);
  return CompareGradients(c.model, got.gradients, expected.gradients).worst;
}

class PlantedWait : public ::testing::TestWithParam<StepWait> {};

TEST_P(PlantedWait, IsFound) {
  const StepWait& planted = GetParam();
  StepCase c = CaseOf(planted.seq_len, planted.order);
  for (const char* name : planted.resident) {
    c.stream.fractions[name] = {.keep = 1, .swap = 0};
  }
  const bool in = planted.waited.ends_with(" in");
  (in ? c.in_speed : c.out_speed) = SlowLink(c.seq_len);
  std::atomic<int> left_out = 0;
  const double error = ErrorOf(c, [&](const StepWait& wait) {
    if (!(wait == planted)) return false;
    ++left_out;
    return true;
  });
  EXPECT_GT(left_out, 0) << "the step made no such wait during its copy";
  EXPECT_FALSE(error <= kLimit)
      << "error " << error << ", " << left_out << " waits left out";
}

INSTANTIATE_TEST_SUITE_P(Removed, PlantedWait, ::testing::ValuesIn(kWaits),
                         [](const auto& info) { return info.param.name; });

class PlantedWaits
    : public ::testing::TestWithParam<std::tuple<int64_t, Order>> {};

// A new wait must get a test. The waits of kWaits imply the code's other waits,
// because copies of one direction run in order.
TEST_P(PlantedWaits, AreAllThatAStepMakes) {
  for (const bool in : {true, false}) {
    StepCase c = CaseOf(std::get<0>(GetParam()), std::get<1>(GetParam()));
    (in ? c.in_speed : c.out_speed) = SlowLink(c.seq_len);
    const double error = ErrorOf(c, [](const StepWait& wait) {
      EXPECT_TRUE(std::ranges::count(kWaits, wait))
          << "not in kWaits: " << ::testing::PrintToString(wait);
      return false;
    });
    EXPECT_LE(error, kLimit);
  }
}

INSTANTIATE_TEST_SUITE_P(
    LengthsAndOrders, PlantedWaits,
    ::testing::Combine(::testing::Values(kShort, kThree, kLong),
                       ::testing::Values(Order::kKeysOuter,
                                         Order::kQueriesOuter)),
    [](const auto& info) {
      return fmt::format(
          "{}Tokens{}Outer", std::get<0>(info.param),
          std::get<1>(info.param) == Order::kKeysOuter ? "Keys" : "Queries");
    });

}  // namespace
}  // namespace sluice::runtime
