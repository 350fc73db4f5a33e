// Every wait that a streamed step asks for, and every mark that several wait
// for, is left out, one at a time and at its one place in the step, on the fake
// CUDA driver; as in removed_waits_test by the order of the calls alone.
//
// Where that changes the order of what uses memory (WaitGraph) the race
// detector must say so. Where it does not, others imply it; as many of these as
// may go together are left out at once, and it must say nothing. What changes
// the order and is found by nobody is listed here with the reason. Which waits
// there are nobody lists: all go through the copy engine.
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
#include "gtest/gtest.h"
#include "tests/torch/waits/many_chunks.h"
#include "tests/torch/waits/numbered_engine.h"
#include "tests/torch/waits/wait_graph.h"

namespace sluice::runtime {
namespace {

using client::NotedWaits;
using Order = stream::BackwardOrder;
using Removal = std::set<size_t>;  // numbers of waits

// How often operations of torch's stream used memory so far.
long Computed() {
  using Accesses = long (*)(void*);
  static const auto accesses =
      reinterpret_cast<Accesses>(dlsym(RTLD_DEFAULT, "fake_cuda_accesses"));
  SLUICE_CHECK(accesses != nullptr);
  return accesses(LoadedTorchCuda()->CurrentStream(0));
}

struct Shape {
  const char* name;
  int64_t seq_len;
  Order order;
  std::vector<const char*> resident = {};  // classes

  friend void PrintTo(const Shape& shape, std::ostream* out) {
    *out << shape.name;
  }
};
const std::vector<const char*> kQuerySide = {
    "q", "attention_output", "lse", "output_gradient", "query_gradient"};
const std::vector<const char*> kKeySide = {"k", "v", "key_gradient",
                                           "value_gradient"};
// Chunks are of 13 tokens: two of them, three, and so many that a slot of every
// ring is used again.
const Shape kShapes[] = {
    {"TwoChunks", 20, Order::kKeysOuter},
    {"ThreeChunksQueriesOuter", 33, Order::kQueriesOuter},
    {"Many", 71, Order::kKeysOuter},
    {"ManyQueriesOuter", 71, Order::kQueriesOuter},
    {"ManyQueriesResident", 71, Order::kKeysOuter, kQuerySide},
    {"ManyKeysResidentQueriesOuter", 71, Order::kQueriesOuter, kKeySide},
};

// In which shape how many removals of waits of a kind change the order of what
// uses memory, and nothing finds them. A wait is for a whole slot, or at a
// phase's start for all memory that is cut into rings anew; of these, here,
// what is used next are other bytes:
//   compute for copies out  writes elsewhere than what is still leaving;
//   copies in for compute   arrive elsewhere than what compute used last.
struct NoConflict {
  const char* shape;
  const char* name;
  int count;
};
const std::vector<NoConflict> kNoConflict = {
    {"TwoChunks", "compute for dX out", 1},
    {"TwoChunks", "compute for q, k, v again out", 2},
    {"TwoChunks", "outer chunk in for compute", 2},
    {"TwoChunks", "a mark: outer chunk in for compute", 2},
    {"ThreeChunksQueriesOuter", "compute for layer out", 3},
    {"ThreeChunksQueriesOuter", "y in for compute", 1},
    {"ThreeChunksQueriesOuter", "a mark: y in for compute", 1},
    {"Many", "compute for layer out", 2},
    {"Many", "compute for q, k, v again out", 1},
    {"Many", "outer chunk in for compute", 2},
    {"Many", "saved rows in for compute", 1},
    {"Many", "y in for compute", 1},
    {"ManyQueriesOuter", "compute for layer out", 2},
    {"ManyQueriesOuter", "y in for compute", 1},
    {"ManyQueriesResident", "compute for layer out", 8},
    {"ManyQueriesResident", "outer chunk in for compute", 1},
    {"ManyQueriesResident", "y in for compute", 1},
};

TEST(WaitGraph, AWaitIsImpliedByOthersThatOrderTheSame) {
  client::WaitGraph graph;
  const size_t copy = graph.Add(/*stream=*/1, /*uses_memory=*/true);
  const size_t next = graph.Add(1, true);
  const size_t early = graph.Wait(graph.Add(0, false), copy);
  const size_t late = graph.Wait(graph.Add(0, false), next);
  graph.Add(0, true);
  EXPECT_TRUE(graph.IsImplied({early}));
  EXPECT_FALSE(graph.IsImplied({late}));
  EXPECT_FALSE(graph.IsImplied({early, late}));
}

TEST(WaitGraph, WhatIsComputedBetweenTwoWaitsNeedsTheFirst) {
  client::WaitGraph graph;
  const size_t copy = graph.Add(/*stream=*/1, /*uses_memory=*/true);
  const size_t early = graph.Wait(graph.Add(0, false), copy);
  graph.Add(0, true);
  const size_t late = graph.Wait(graph.Add(0, false), copy);
  graph.Add(0, true);
  EXPECT_FALSE(graph.IsImplied({early}));
  EXPECT_TRUE(graph.IsImplied({late}));
}

class EachWait : public ::testing::TestWithParam<Shape> {
 protected:
  // A step without those waits; what was found.
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

  // Each wait alone, and all that wait for one mark.
  static std::vector<Removal> RemovalsOf(const NotedWaits& step) {
    std::vector<Removal> removals;
    for (size_t i = 0; i < step.names.size(); ++i) removals.push_back({i});
    removals.insert(removals.end(), step.of_marks.begin(), step.of_marks.end());
    return removals;
  }
  static std::map<std::string, int> Listed() {
    std::map<std::string, int> listed;
    for (const NoConflict& each : kNoConflict) {
      if (each.shape == std::string(GetParam().name)) {
        listed[each.name] += each.count;
      }
    }
    return listed;
  }
};

TEST_P(EachWait, NothingIsFoundInAWholeStep) {
  NotedWaits step;
  EXPECT_EQ(Run({}, &step), "");
}

TEST_P(EachWait, ThatIsLeftOutIsFoundWhereItOrdersSomething) {
  NotedWaits step;
  ASSERT_EQ(Run({}, &step), "");
  Removal implied_together;
  std::map<std::string, int> not_found;
  size_t found = 0, implied = 0;
  for (const Removal& removed : RemovalsOf(step)) {
    if (step.graph.IsImplied(removed)) {
      ++implied;
      Removal more = implied_together;
      more.insert(removed.begin(), removed.end());
      if (step.graph.IsImplied(more)) implied_together = std::move(more);
      continue;
    }
    NotedWaits same;
    const std::string findings = Run(removed, &same);
    ASSERT_EQ(same.names, step.names) << "a step asks for others each time";
    if (findings.find("race: ") != std::string::npos) {
      ++found;
    } else {
      ++not_found[(removed.size() > 1 ? "a mark: " : "") +
                  step.names[*removed.begin()]];
    }
  }
  EXPECT_EQ(not_found, Listed());
  NotedWaits same;
  EXPECT_EQ(Run(implied_together, &same), "");
  std::printf(
      "%s: of %zu waits and %zu marks with several, %zu are found as races, "
      "%zu are implied by others (%zu left out at once)\n",
      GetParam().name, step.names.size(), step.of_marks.size(), found, implied,
      implied_together.size());
}

INSTANTIATE_TEST_SUITE_P(Shapes, EachWait, ::testing::ValuesIn(kShapes),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::runtime
