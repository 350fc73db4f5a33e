// Removes every wait that a streamed step makes, one kind at a time, on the
// fake CUDA driver. The driver's race detector must report each removal by the
// order of the calls alone: with the fake's setting `unready`, no query finds a
// copy done. (planted_waits_test shows on sim that such a step computes wrong
// gradients; each_wait_test removes the waits of a kind one by one.)
//
// A kind is a pair of waiter and awaited work: compute, or a copy by its label
// and direction. The kinds come from the step itself, so a new kind is tried,
// too. Kinds that the detector does not find are listed here, with the reason.
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "gmock/gmock.h"
#include "tests/torch/careless_engine.h"
#include "tests/torch/waits/many_chunks.h"

namespace sluice::runtime {
namespace {

using client::CarelessEngine;
using Order = stream::BackwardOrder;

constexpr auto& kCompute = CarelessEngine::kCompute;

using StepWait = std::pair<std::string, std::string>;  // waiter, waited for

std::string WaitName(const StepWait& wait) {
  return wait.first + " for " + wait.second;
}

// Waits that can be removed without a race, also all at once, because other
// waits imply them. Copies of a direction run in order, and so does compute, so
// a wait for a later copy, or for compute that waited, covers an earlier wait.
// A step makes these waits because its parts are independent, and because other
// shapes need them (planted_waits_test has two chunks, and resident classes).
const std::set<StepWait> kImplied = {
    {kCompute, kCompute},
    {kCompute, "x, dX in"},
    {"dO, dX out", "saved rows in"},
    {"dX out", "x, dX in"},
    {"dY out", "y in"},
    {"gradients of inner chunk in", kCompute},
    {"gradients of inner chunk out", "gradients of inner chunk in"},
    {"inner chunk in", "q, k, v again out"},
    {"inner chunk in", "q, k, v out"},
    {"outer chunk in", "q, k, v again out"},
    {"outer chunk in", "q, k, v out"},
    {"q, k, v again out", "inner chunk in"},
    {"q, k, v again out", "k, v in"},
    {"q, k, v again out", "outer chunk in"},
    {"q, k, v out", "k, v in"},
    {"saved rows in", "dX out"},
    {"saved rows in", "embedding out"},
    {"saved rows in", "layer out"},
    {"saved rows in", "o, lse out"},
    {"x in", "layer out"},
    {"x, dX in", "dO, dX out"},
    {"x, dX in", "embedding out"},
    {"x, dX in", "layer out"},
    {"x, dX in", "q, k, v out"},
    {"y in", "layer out"}};
const std::set<StepWait> kImpliedWithKeysOuter = {
    {"dO, dX out", "inner chunk in"},
    {"inner chunk in", "dO, dX out"},
    {"inner chunk in", "o, lse out"}};
const std::set<StepWait> kImpliedWithQueriesOuter = {
    {"dO, dX out", "outer chunk in"},
    {"outer chunk in", "dO, dX out"},
    {"outer chunk in", "o, lse out"}};

class RemovedWaits : public ::testing::TestWithParam<Order> {
 protected:
  // Runs a step without the waits `forgotten`, and records all its waits in
  // `made`. Returns the findings.
  std::string Run(const std::set<StepWait>& forgotten,
                  std::set<StepWait>* made) {
    StepCase c = ManyChunks(GetParam());
    c.wrap_engine = [&](client::CopyEngine* engine) {
      return std::make_unique<CarelessEngine>(
          engine, [&](const CarelessEngine::StepWait& wait) {
            const StepWait kind = {wait.waiter, wait.waited};
            made->insert(kind);
            return forgotten.contains(kind);
          });
    };
    RunStep(c, MakeStepData(c, 5));
    return TakeFindings();
  }
};

TEST_P(RemovedWaits, AreEachFoundAsARaceOrListedAsImplied) {
  std::set<StepWait> made, implied = kImplied;
  implied.merge(std::set<StepWait>(GetParam() == Order::kKeysOuter
                                       ? kImpliedWithKeysOuter
                                       : kImpliedWithQueriesOuter));
  EXPECT_EQ(Run({}, &made), "");
  EXPECT_EQ(Run(implied, &made), "");
  for (const StepWait& wait : implied) {
    EXPECT_TRUE(made.contains(wait))
        << "listed as implied, but the step no longer makes it: "
        << WaitName(wait);
  }
  for (const StepWait& wait : made) {
    if (implied.contains(wait)) continue;
    std::set<StepWait> forgotten = implied;
    forgotten.insert(wait);
    EXPECT_THAT(Run(forgotten, &made), ::testing::HasSubstr("race: "))
        << WaitName(wait);
  }
  std::printf("%zu kinds of waits are found, %zu are implied by others\n",
              made.size() - implied.size(), implied.size());
}

INSTANTIATE_TEST_SUITE_P(Orders, RemovedWaits,
                         ::testing::Values(Order::kKeysOuter,
                                           Order::kQueriesOuter),
                         [](const auto& info) {
                           return info.param == Order::kKeysOuter
                                      ? "KeysOuter"
                                      : "QueriesOuter";
                         });

}  // namespace
}  // namespace sluice::runtime
