// Removes every wait of a streamed step, one at a time and at one place in the
// step, on the fake CUDA driver; then every group of waits for one mark of
// compute. As in removed_waits_test, only the order of the calls counts.
//
// If a removal leaves two conflicting operations unordered (WaitGraph), the
// race detector must report a race. Otherwise the wait is not needed: other
// waits imply it, or the unordered operations use different bytes. As many
// unneeded waits as possible are then removed at once, and the detector must
// report nothing. The waits are not listed: all go through the copy engine.
#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/torch/memory/torch_cuda.h"
#include "gmock/gmock.h"
#include "tests/torch/waits/many_chunks.h"
#include "tests/torch/waits/numbered_engine.h"
#include "tests/torch/waits/wait_graph.h"

namespace sluice::runtime {
namespace {

using client::NotedWaits;
using Order = stream::BackwardOrder;
using Removal = std::set<size_t>;  // numbers of waits

// Returns the accesses of operations on torch's stream since the last call.
client::WaitGraph::Accesses Computed() {
  using Take = void (*)(void*, client::WaitGraph::Accesses&);
  static const auto take =
      reinterpret_cast<Take>(dlsym(RTLD_DEFAULT, "fake_cuda_take_accesses"));
  SLUICE_CHECK(take != nullptr);
  client::WaitGraph::Accesses accesses;
  take(LoadedTorchCuda()->CurrentStream(0), accesses);
  return accesses;
}

struct Shape {
  const char* name;
  int64_t seq_len;
  Order order;
  std::vector<const char*> resident = {};  // classes in HBM

  friend void PrintTo(const Shape& shape, std::ostream* out) {
    *out << shape.name;
  }
};
const std::vector<const char*> kQuerySide = {
    "q", "attention_output", "lse", "output_gradient", "query_gradient"};
const std::vector<const char*> kKeySide = {"k", "v", "key_gradient",
                                           "value_gradient"};
// Sequences of two chunks of 13 tokens, of three chunks, and of so many that
// every ring reuses its slots.
const Shape kShapes[] = {
    {"TwoChunks", 20, Order::kKeysOuter},
    {"ThreeChunksQueriesOuter", 33, Order::kQueriesOuter},
    {"Many", 71, Order::kKeysOuter},
    {"ManyQueriesOuter", 71, Order::kQueriesOuter},
    {"ManyQueriesResident", 71, Order::kKeysOuter, kQuerySide},
    {"ManyKeysResidentQueriesOuter", 71, Order::kQueriesOuter, kKeySide},
};

fake_cuda::Access Use(uintptr_t begin, uintptr_t end, bool writes) {
  return {reinterpret_cast<const void*>(begin), end - begin, writes};
}

TEST(WaitGraph, OperationsConflictInCommonBytesThatOneOfThemWrites) {
  client::WaitGraph graph;
  const size_t read = graph.Add(0, {Use(10, 20, false)});
  const size_t write = graph.Add(1, {Use(19, 30, true)});
  const size_t behind = graph.Add(2, {Use(20, 25, false)});
  EXPECT_TRUE(graph.Conflict(read, write));
  EXPECT_TRUE(graph.Conflict(behind, write));
  EXPECT_FALSE(graph.Conflict(read, behind));
  const size_t beside =
      graph.Add(3, {Use(0, 5, true), Use(40, 50, true), Use(5, 10, true)});
  EXPECT_FALSE(graph.Conflict(beside, read));
  EXPECT_FALSE(graph.Conflict(beside, write));
  EXPECT_TRUE(graph.Conflict(beside, graph.Add(4, {Use(8, 9, false)})));
}

TEST(WaitGraph, AWaitIsNotNeededIfOtherWaitsImplyIt) {
  client::WaitGraph graph;
  const size_t copy = graph.Add(/*stream=*/1, {Use(0, 4, true)});
  const size_t next = graph.Add(1, {Use(4, 8, true)});
  const size_t early = graph.Wait(graph.Add(0), copy);
  const size_t late = graph.Wait(graph.Add(0), next);
  graph.Add(0, {Use(0, 8, false)});
  EXPECT_FALSE(graph.AreNeeded({early}));
  EXPECT_TRUE(graph.AreNeeded({late}));
  EXPECT_TRUE(graph.AreNeeded({early, late}));
}

TEST(WaitGraph, ComputeBetweenTwoWaitsNeedsTheFirst) {
  client::WaitGraph graph;
  const size_t copy = graph.Add(/*stream=*/1, {Use(0, 4, true)});
  const size_t early = graph.Wait(graph.Add(0), copy);
  graph.Add(0, {Use(0, 4, false)});
  const size_t late = graph.Wait(graph.Add(0), copy);
  graph.Add(0, {Use(0, 4, false)});
  EXPECT_TRUE(graph.AreNeeded({early}));
  EXPECT_FALSE(graph.AreNeeded({late}));
}

TEST(WaitGraph, AWaitForOtherBytesIsNotNeeded) {
  client::WaitGraph graph;
  const size_t copy = graph.Add(/*stream=*/1, {Use(0, 4, true)});
  const size_t wait = graph.Wait(graph.Add(0), copy);
  graph.Add(0, {Use(4, 8, true)});
  EXPECT_FALSE(graph.AreNeeded({wait}));
  graph.Add(0, {Use(0, 1, false)});
  EXPECT_TRUE(graph.AreNeeded({wait}));
}

class EachWait : public ::testing::TestWithParam<Shape> {
 protected:
  // Runs a step without the waits `removed`. Returns the findings.
  std::string Run(const Removal& removed, NotedWaits* noted) {
    StepCase c = ManyChunks(GetParam().order);
    c.seq_len = GetParam().seq_len;
    for (const char* const name : GetParam().resident) {
      c.stream.fractions[name] = {.keep = 1, .swap = 0};
    }
    c.wrap_engine = [&](client::CopyEngine* engine) {
      return std::make_unique<client::NumberedEngine>(engine, removed, Computed,
                                                      noted);
    };
    RunStep(c, MakeStepData(c, 5));
    return TakeFindings();
  }

  // Returns each wait alone, and each group of waits for one mark.
  static std::vector<Removal> RemovalsOf(const NotedWaits& step) {
    std::vector<Removal> removals;
    for (size_t i = 0; i < step.names.size(); ++i) removals.push_back({i});
    removals.insert(removals.end(), step.of_marks.begin(), step.of_marks.end());
    return removals;
  }
};

TEST_P(EachWait, AWholeStepHasNoFindings) {
  NotedWaits step;
  EXPECT_EQ(Run({}, &step), "");
}

TEST_P(EachWait, IsFoundIfItIsRemovedAndNeeded) {
  NotedWaits step;
  ASSERT_EQ(Run({}, &step), "");
  Removal together;
  std::map<std::string, int> not_found;
  size_t found = 0, unneeded = 0;
  for (const Removal& removed : RemovalsOf(step)) {
    if (!step.graph.AreNeeded(removed)) {
      ++unneeded;
      Removal more = together;
      more.insert(removed.begin(), removed.end());
      if (!step.graph.AreNeeded(more)) together = std::move(more);
      continue;
    }
    NotedWaits same;
    const std::string findings = Run(removed, &same);
    ASSERT_EQ(same.names, step.names)
        << "a step makes different waits in each run";
    if (findings.find("race: ") != std::string::npos) {
      ++found;
    } else {
      ++not_found[(removed.size() > 1 ? "a mark: " : "") +
                  step.names[*removed.begin()]];
    }
  }
  EXPECT_THAT(not_found, ::testing::IsEmpty());
  NotedWaits same;
  EXPECT_EQ(Run(together, &same), "");
  std::printf(
      "%s: of %zu waits and %zu marks with several, %zu are found as races, "
      "%zu are not needed (%zu left out at once)\n",
      GetParam().name, step.names.size(), step.of_marks.size(), found, unneeded,
      together.size());
}

INSTANTIATE_TEST_SUITE_P(Shapes, EachWait, ::testing::ValuesIn(kShapes),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::runtime
