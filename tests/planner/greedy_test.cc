// Tests the index of placed items against a placer that checks every pair, and
// the greedy race against the same orders in one thread.
#include "planner/memory/greedy.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "planner/memory/arms.h"
#include "proto/plan/validate.h"
#include "tests/planner/large_traces.h"
#include "tests/planner/traces.h"

namespace sluice::planner {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Computes first and best fit by their definitions.
int64_t NaiveFind(const Problem& problem, const std::vector<uint32_t>& placed,
                  const Offsets& offsets, const Item& item, Fit fit) {
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (const uint32_t k : placed) {
    const Item& other = problem.items[k];
    if (other.lower < item.upper && item.lower < other.upper) {
      taken.emplace_back(offsets[k], offsets[k] + other.size);
    }
  }
  std::sort(taken.begin(), taken.end());
  int64_t reach = 0;
  int64_t best = -1;
  int64_t best_gap = kNoLimit;
  for (const auto& [begin, end] : taken) {
    const int64_t gap = begin - reach;
    if (gap >= item.size && gap < best_gap) {
      best = reach;
      best_gap = fit == Fit::kFirst ? 0 : gap;
    }
    reach = std::max(reach, end);
  }
  return best >= 0 ? best : reach;
}

TEST(Occupancy, FindsTheSameGapsAsACheckOfEveryPair) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const plan::Trace trace = round % 2 ? RandomTrace(random, 120, 300, 40)
                                        : LayerTrace(random, 8, 0.5);
    const Problem problem = Normalise(trace);
    for (const NamedOrder& named : GreedyOrders(problem)) {
      for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
        const auto found = PlaceAlone(problem, named.order, fit, kNoLimit);
        ASSERT_TRUE(found.has_value());
        Offsets expected(problem.items.size());
        std::vector<uint32_t> placed;
        for (const uint32_t k : named.order) {
          expected[k] =
              NaiveFind(problem, placed, expected, problem.items[k], fit);
          placed.push_back(k);
        }
        ASSERT_EQ(*found, expected) << named.name << " round " << round;
      }
    }
  }
}

TEST(Occupancy, EveryScanFunctionReturnsWhatThePortableOneReturns) {
  std::mt19937 random(13);
  const auto below = [&](uint32_t n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 2000; ++round) {
    ScanBlock block;
    std::fill(std::begin(block.lower), std::end(block.lower), INT32_MAX);
    std::fill(std::begin(block.upper), std::end(block.upper), INT32_MIN);
    block.count = random() % (ScanBlock::kCapacity + 1);
    int64_t at = 0;
    for (size_t k = 0; k < block.count; ++k) {
      block.lower[k] = below(100);
      block.upper[k] = block.lower[k] + 1 + below(50);
      block.begin[k] = at += below(3) * below(20);
      block.end[k] = at + 1 + below(60);
      block.item[k] = static_cast<uint32_t>(random());
    }
    const int lower = below(120);
    Scan start{.lower = lower,
               .upper = lower + 1 + below(60),
               .size = 1 + below(20),
               .reach = below(200)};
    start.enough = round % 2 ? start.size : Scan::kNone - 1;
    const ScanFunctions& portable = Scans().back();
    Scan plain = start;
    const bool found = portable.scan(block, &plain);
    std::vector<uint32_t> listed(ScanBlock::kCapacity + 16);
    listed.resize(
        portable.list(block, start.lower, start.upper, listed.data()));
    for (const ScanFunctions& other : Scans()) {
      Scan scan = start;
      ASSERT_EQ(other.scan(block, &scan), found) << other.name;
      ASSERT_EQ(scan.gap, plain.gap) << other.name;
      ASSERT_EQ(scan.offset, plain.offset) << other.name;
      if (!found) {
        ASSERT_EQ(scan.reach, plain.reach) << other.name;
      }
      std::vector<uint32_t> list(ScanBlock::kCapacity + 16);
      list.resize(other.list(block, start.lower, start.upper, list.data()));
      ASSERT_EQ(list, listed) << other.name;
    }
  }
}

TEST(Occupancy, ARemovedItemDoesNotChangeWhatIsFound) {
  std::mt19937 random(14);
  for (int round = 0; round < 20; ++round) {
    // With few addresses many items begin at one address, and blocks split
    // between such items.
    const Problem problem = Normalise(RandomTrace(random, 2000, 300, 5));
    const auto offset = [](size_t k) {
      return static_cast<int64_t>(k * 7919 % 40);
    };
    Occupancy both, one;
    for (size_t k = 0; k < problem.items.size(); ++k) {
      const Item& item = problem.items[k];
      both.Add(item, offset(k), static_cast<uint32_t>(k));
      if (k % 3 != 0) one.Add(item, offset(k), static_cast<uint32_t>(k));
    }
    for (size_t k = 0; k < problem.items.size(); k += 3) {
      both.Remove(problem.items[k], offset(k), static_cast<uint32_t>(k));
    }
    for (const Item& item : problem.items) {
      for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
        ASSERT_EQ(both.Find(item, fit, kNoLimit),
                  one.Find(item, fit, kNoLimit));
      }
    }
  }
}

// Returns items with lifetimes from one slot to most of the trace, so that
// queries use windows of every width.
Problem OfShortLives(std::mt19937& random) {
  constexpr int64_t kEnd = 40'000;
  plan::Trace trace{.end = kEnd};
  for (int k = 0; k < 20'000; ++k) {
    const auto most = static_cast<int64_t>(1) << (random() % 100 == 0 ? 15 : 8);
    const auto lower = static_cast<int64_t>(random() % kEnd);
    const auto life = static_cast<int64_t>(1 + random() % most);
    trace.buffers.push_back({.id = k,
                             .lower = lower,
                             .upper = std::min(lower + life, kEnd),
                             .size = Bytes(1 + random() % 1000)});
  }
  return Normalise(trace);
}

TEST(Occupancy, WindowsFindTheSameItemsAsOneList) {
  std::mt19937 random(15);
  const Problem problem = OfShortLives(random);
  Occupancy windows(problem), one;
  std::vector<uint32_t> listed, expected;
  Offsets offsets;
  const auto every = [&](auto visit) {
    for (uint32_t k = 0; k < problem.items.size(); ++k) {
      visit(k, problem.items[k]);
    }
  };
  every([&](uint32_t k, const Item& item) {
    const Fit fit = k % 2 ? Fit::kFirst : Fit::kBest;
    const int64_t at = windows.Find(item, fit, kNoLimit);
    ASSERT_EQ(at, one.Find(item, fit, kNoLimit));
    offsets.push_back(at);
    windows.Add(item, at, k);
    one.Add(item, at, k);
  });
  every([&](uint32_t k, const Item& item) {
    if (k % 3 != 0) return;
    windows.Remove(item, offsets[k], k);
    one.Remove(item, offsets[k], k);
  });
  every([&](uint32_t, const Item& item) {
    windows.List(item, &listed);
    one.List(item, &expected);
    ASSERT_EQ(listed, expected);
  });
  EXPECT_LT(5 * windows.visited(), one.visited());
}

TEST(Replay, MakesAValidPlan) {
  std::mt19937 random(12);
  for (int round = 0; round < 50; ++round) {
    const plan::Trace trace = RandomTrace(random, 80, 60, 30);
    const Problem problem = Normalise(trace);
    const Offsets replayed = ReplayAllocator(problem, [] { return false; });
    const absl::Status valid =
        plan::ValidatePlacement(trace, ToPlacement(problem, replayed, trace));
    EXPECT_TRUE(valid.ok()) << valid;
  }
}

// A second thread helps with 4,000 items or more, which must not change the
// result. The reference runs every order in turn, in one thread.
TEST(Race, TwoThreadsFindThePlanOfOneThread) {
  const plan::Trace trace =
      GenerateLarge({"churn", 4500, LargeSpec::Shape::kChurn}, 3);
  const Problem problem = Normalise(trace);
  const auto never = [] { return false; };
  Offsets expected;
  int64_t best = kNoLimit;
  for (const NamedOrder& named : GreedyOrders(problem)) {
    for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
      auto offsets = PlaceAlone(problem, named.order, fit, best - 1);
      if (!offsets) continue;
      best = PeakOf(problem, *offsets);
      expected = *std::move(offsets);
    }
  }
  for (int round = 0; round < 2; ++round) {
    const GreedyResult result =
        GreedyRace(problem, kNoLimit, problem.max_live, never);
    EXPECT_EQ(result.peak, best);
    EXPECT_EQ(result.offsets, expected);
  }
}

// A 32-bit index for each pair of 60,000 buffers would take 13.4 GiB.
TEST(Occupancy, BuffersThatLiveTogetherTakeNoMemoryPerPair) {
  const plan::Trace trace =
      GenerateLarge({"all", 60000, LargeSpec::Shape::kAllLive}, 1);
  const Problem problem = Normalise(trace);
  const auto offsets = PlaceAlone(problem, GreedyOrders(problem)[0].order,
                                  Fit::kFirst, kNoLimit);
  EXPECT_EQ(PeakOf(problem, *offsets), problem.max_live);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss / 1024, 1024);  // MiB
}

}  // namespace
}  // namespace sluice::planner
