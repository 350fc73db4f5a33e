// Checks properties over seeded stories of jobs that arrive and leave: no
// promise is broken, no flow starves, no channel is idle while a flow waits for
// it (NodeSimulation checks the channels after every window).
#include <random>

#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/daemon/bandwidth/job_story.h"
#include "tests/daemon/bandwidth/node_simulation.h"

namespace sluice::daemon::bandwidth {
namespace {

// Returns a node of up to 9 GPUs with links of random speeds.
JobStoryOptions RandomNode(uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  JobStoryOptions options{.seed = seed, .jobs = 40};
  options.links.push_back(
      {"numa", 0, 0, "", pick(0, 1) < 0.5 ? 0 : pick(4e9, 30e9)});
  for (int i = static_cast<int>(pick(1, 4)); i > 0; --i) {
    const double width = pick(0, 1) < 0.5 ? 8e9 : pick(2e9, 16e9);
    const std::string above = "switch" + std::to_string(i);
    options.links.push_back({above, width, width, "numa"});
    for (int gpu = static_cast<int>(pick(1, 4)); gpu > 0; --gpu) {
      const double own = pick(0, 1) < 0.5 ? 8e9 : pick(2e9, 16e9);
      options.gpu_links.push_back(static_cast<int>(options.links.size()));
      options.links.push_back(
          {above + " gpu" + std::to_string(gpu), own, own, above});
    }
  }
  return options;
}

class BandwidthStories : public ::testing::TestWithParam<uint32_t> {};

TEST_P(BandwidthStories, EveryPromiseIsKeptAndNoFlowStarves) {
  const JobStoryResult result = JobStory(RandomNode(GetParam())).Run();
  EXPECT_EQ(result.late, 0)
      << "of " << result.due << " copies, late by up to " << result.latest;
  EXPECT_EQ(result.budgets_short, 0) << "of " << result.budgets << " budgets";
  EXPECT_GE(result.least_share, 1)
      << "of " << result.plain << " flows without a promise";
  EXPECT_GT(result.admitted, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, BandwidthStories,
                         ::testing::Range<uint32_t>(1, 25));

// Runs three of the stories without promises, to show that late copies are
// detected.
TEST(BandwidthStory, WithoutPromisesSomeCopiesAreLate) {
  int64_t late = 0;
  for (uint32_t seed : {1, 2, 3}) {
    JobStoryOptions options = RandomNode(seed);
    options.promises = false;
    late += JobStory(options).Run().late;
  }
  EXPECT_GT(late, 0);
}

// Copies that never end must count as late, too: otherwise a flow that starves
// until it leaves would seem in time.
TEST(BandwidthStory, ACopyThatDoesNotEndIsOverdue) {
  NodeSimulation node(*Topology::Make({{"gpu", 1000, 1000}}),
                      absl::Milliseconds(10));
  node.Open(0, 0, kH2d);
  node.Ask(0, 5000, node.now() + absl::Seconds(1));
  node.Ask(0, 100);
  node.RunUntil(node.now() + absl::Milliseconds(900));
  EXPECT_EQ(node.overdue(0), 0);
  node.RunUntil(node.now() + absl::Seconds(1));
  EXPECT_EQ(node.overdue(0), 1);
}

}  // namespace
}  // namespace sluice::daemon::bandwidth
