// Tests which GPU a rank chooses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/train/launch/outcome.h"
#include "client/train/launch/rank_environment.h"

namespace sluice::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns GPUs of 100 MiB each, with `leased` MiB in use.
std::vector<client::GpuState> Node(const std::vector<int64_t>& leased) {
  std::vector<client::GpuState> gpus;
  for (const int64_t mib : leased) {
    gpus.push_back({.index = DeviceIndex(gpus.size()),
                    .total = MiB(100),
                    .leased = MiB(mib)});
  }
  return gpus;
}

std::vector<int64_t> Gpus(const std::vector<GpuPlace>& places) {
  std::vector<int64_t> gpus;
  for (const GpuPlace& place : places) gpus.push_back(place.gpu);
  return gpus;
}

TEST(ChooseGpus, GpusThatMayNotBeUsedAreNotChosen) {
  auto gpus = Node({0, 0, 50, 0});
  gpus.erase(gpus.begin());
  EXPECT_THAT(Gpus(*ChooseGpus(gpus, {}, 3, true)), ElementsAre(1, 2, 3));
  EXPECT_THAT(Gpus(*ChooseGpus(gpus, {}, 2, true)), ElementsAre(1, 3));
  EXPECT_THAT(Gpus(*ChooseGpus(gpus, {}, 4, false)), ElementsAre(1, 2, 3, 1));
  EXPECT_THAT(ChooseGpus(gpus, {0}, 1, true).status().message(),
              HasSubstr("--gpu 0: the node has GPUs 1, 2, 3"));
}

TEST(ChooseGpus, HostMemoryIsSharedWithTheRanksOfTheSameNumaNode) {
  auto gpus = Node({0, 0, 0});
  gpus[1].numa = gpus[2].numa = NumaIndex(1);
  const auto shares = [&](const std::vector<int64_t>& named, int ranks) {
    std::vector<int64_t> shares;
    const auto places = *ChooseGpus(gpus, named, ranks, true);
    for (const GpuPlace& place : places) {
      shares.push_back(place.numa_ranks);
    }
    return shares;
  };
  EXPECT_THAT(shares({}, 3), ElementsAre(1, 2, 2));
  EXPECT_THAT(shares({0, 2}, 2), ElementsAre(1, 1));
  EXPECT_THAT(shares({1}, 2), ElementsAre(2, 2));
}

TEST(ChooseGpus, OneRankTakesTheGpuWithMostFreeMemory) {
  EXPECT_THAT(Gpus(*ChooseGpus(Node({0, 0}), {}, 1, true)), ElementsAre(0));
  EXPECT_THAT(Gpus(*ChooseGpus(Node({60, 20, 40}), {}, 1, true)),
              ElementsAre(1));
  EXPECT_THAT(Gpus(*ChooseGpus(Node({60, 20, 40}), {}, 2, true)),
              ElementsAre(1, 2));
}

TEST(ChooseGpus, AsManyRanksAsGpusTakeThemInOrder) {
  EXPECT_THAT(Gpus(*ChooseGpus(Node({60, 20}), {}, 2, true)),
              ElementsAre(0, 1));
  const auto places = *ChooseGpus(Node({0, 0}), {}, 3, true);
  EXPECT_THAT(Gpus(places), ElementsAre(0, 1, 0));
  EXPECT_EQ(places[0].ranks, 2);
  EXPECT_EQ(places[1].ranks, 1);
}

TEST(ChooseGpus, RanksOfTorchrunIgnoreFreeMemory) {
  EXPECT_THAT(Gpus(*ChooseGpus(Node({60, 20, 40}), {}, 2, false)),
              ElementsAre(0, 1));
}

TEST(ChooseGpus, NamedGpusAreTakenInTurn) {
  const auto places = *ChooseGpus(Node({0, 0, 0}), {2, 0}, 3, true);
  EXPECT_THAT(Gpus(places), ElementsAre(2, 0, 2));
  EXPECT_EQ(places[0].ranks, 2);
}

TEST(ChooseGpus, MoreNamesThanRanksAreRefused) {
  const auto two = ChooseGpus(Node({0, 0}), {0, 1}, 1, true);
  EXPECT_EQ(ExitCode(two.status()), kExitBadInput);
  EXPECT_THAT(std::string(two.status().message()),
              HasSubstr("--gpu names 2 GPUs for 1 rank: name one, or one per"));
}

TEST(ChooseGpus, AnUnknownGpuIsRefusedAndTheNodesGpusAreNamed) {
  const auto two = ChooseGpus(Node({0, 0}), {5}, 1, true);
  EXPECT_EQ(ExitCode(two.status()), kExitBadInput);
  EXPECT_THAT(std::string(two.status().message()),
              HasSubstr("--gpu 5: the node has GPUs 0 to 1"));
  EXPECT_THAT(
      std::string(ChooseGpus(Node({0}), {1}, 1, true).status().message()),
      HasSubstr("--gpu 1: the node has GPU 0 only"));
  EXPECT_EQ(ExitCode(ChooseGpus({}, {}, 1, true).status()), kExitBadInput);
}

TEST(ParseGpuList, TakesNumbersAndNothingElse) {
  EXPECT_THAT(*ParseGpuList("1"), ElementsAre(1));
  EXPECT_THAT(*ParseGpuList("0,2,3"), ElementsAre(0, 2, 3));
  EXPECT_TRUE(ParseGpuList("")->empty());
  for (const char* text : {"a", "1,", "-1", "1 2", "1,,2", "0x1"}) {
    const auto parsed = ParseGpuList(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(text));
  }
}

}  // namespace
}  // namespace sluice::train
