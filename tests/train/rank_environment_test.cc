// Tests a rank's place in its job, as each launcher states it.
#include "client/train/launch/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "client/train/launch/outcome.h"
#include "tests/support/status_matchers.h"

namespace sluice::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Map = std::map<std::string, std::string>;

Variables Of(const Map& map) {
  return [map](const char* name) -> std::optional<std::string> {
    const auto found = map.find(name);
    if (found == map.end()) return std::nullopt;
    return found->second;
  };
}

Map With(Map map, const Map& more) {
  for (const auto& [name, value] : more) map[name] = value;
  return map;
}

Map Without(Map map, const std::string& name) {
  map.erase(name);
  return map;
}

std::string Refusal(const Map& map) {
  const auto environment = ReadRankEnvironment(Of(map));
  EXPECT_EQ(ExitCode(environment.status()), kExitBadInput);
  return std::string(environment.status().message());
}

// The sixth of 7 tasks on 3 nodes.
const Map kSrun = {
    {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_STEP_TASKS_PER_NODE", "3(x2),1"},
    {"SLURM_PROCID", "5"},         {"SLURM_LOCALID", "2"},
    {"SLURM_NODEID", "1"},         {"MASTER_ADDR", "node7"},
    {"MASTER_PORT", "29501"}};

const Map kTorchrun = {{"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"MASTER_ADDR", "node7"},
                       {"MASTER_PORT", "29501"}};

TEST(RankEnvironment, TorchrunsVariablesAreUsedAsTheyAre) {
  EXPECT_TRUE(IsRank(Of(kTorchrun)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const RankEnvironment e,
                              ReadRankEnvironment(Of(kTorchrun)));
  EXPECT_EQ(e.rank, 5);
  EXPECT_EQ(e.world_size, 8);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world_size, 4);
  EXPECT_EQ(e.master_addr, "node7");
  EXPECT_EQ(e.master_port, 29501);
}

TEST(RankEnvironment, SrunsTasksAreRanks) {
  EXPECT_TRUE(IsRank(Of(kSrun)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const RankEnvironment e,
                              ReadRankEnvironment(Of(kSrun)));
  EXPECT_EQ(e.rank, 5);
  EXPECT_EQ(e.world_size, 7);
  EXPECT_EQ(e.local_rank, 2);
  EXPECT_EQ(e.local_world_size, 3);
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const RankEnvironment last,
      ReadRankEnvironment(Of(With(kSrun, {{"SLURM_PROCID", "6"},
                                          {"SLURM_LOCALID", "0"},
                                          {"SLURM_NODEID", "2"}}))));
  EXPECT_EQ(last.local_world_size, 1);
}

// srun --distribution=cyclic deals tasks to nodes in turn.
TEST(RankEnvironment, RanksOfANodeShareItsNumberHoweverTheyArePlaced) {
  const auto node_of = [](const Map& map) {
    const auto e = ReadRankEnvironment(Of(map));
    return e.ok() ? e->node : -1;
  };
  const Map cyclic = With(kSrun, {{"SLURM_STEP_NUM_TASKS", "6"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"}});
  std::set<int> nodes[2];
  for (int rank = 0; rank < 6; ++rank) {
    nodes[rank % 2].insert(
        node_of(With(cyclic, {{"SLURM_PROCID", std::to_string(rank)},
                              {"SLURM_LOCALID", std::to_string(rank / 2)},
                              {"SLURM_NODEID", std::to_string(rank % 2)}})));
  }
  EXPECT_EQ(nodes[0].size(), 1u);
  EXPECT_EQ(nodes[1].size(), 1u);
  EXPECT_NE(nodes[0], nodes[1]);
  const int first =
      node_of(With(kTorchrun, {{"RANK", "4"}, {"LOCAL_RANK", "0"}}));
  EXPECT_EQ(node_of(kTorchrun), first);
  EXPECT_NE(node_of(With(kTorchrun, {{"RANK", "3"}, {"LOCAL_RANK", "3"}})),
            first);
}

TEST(RankEnvironment, ABatchScriptAndASingleTaskAreNoRanks) {
  // The script of `sbatch -n 8` has the allocation's variables, but is no step.
  EXPECT_FALSE(IsRank(Of({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}})));
  EXPECT_FALSE(IsRank(Of(With(kSrun, {{"SLURM_STEP_NUM_TASKS", "1"}}))));
  EXPECT_FALSE(IsRank(Of({})));
}

TEST(RankEnvironment, OurLaunchersVariablesWinInsideAnSrunTask) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const RankEnvironment e,
      ReadRankEnvironment(Of(With(kSrun, {{"RANK", "0"},
                                          {"WORLD_SIZE", "2"},
                                          {"LOCAL_RANK", "0"},
                                          {"LOCAL_WORLD_SIZE", "2"}}))));
  EXPECT_EQ(e.world_size, 2);
}

TEST(RankEnvironment, SrunWithoutAMasterAddressIsRefusedWithWhatToExport) {
  EXPECT_THAT(Refusal(Without(kSrun, "MASTER_ADDR")),
              AllOf(HasSubstr("srun started 7 tasks"),
                    HasSubstr("export MASTER_ADDR=")));
  EXPECT_THAT(Refusal(Without(kSrun, "MASTER_PORT")),
              HasSubstr("MASTER_PORT is not set"));
}

TEST(RankEnvironment, ABrokenSlurmVariableIsNamed) {
  for (const char* text : {"", "3(x", "3(x2", "x", "3(x1),", "0", "-3(x9)"}) {
    EXPECT_THAT(Refusal(With(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", text}})),
                HasSubstr("SLURM_STEP_TASKS_PER_NODE"))
        << text;
  }
  EXPECT_THAT(Refusal(Without(kSrun, "SLURM_LOCALID")),
              HasSubstr("SLURM_LOCALID=(unset)"));
}

TEST(RankEnvironment, TheLocalSizeIsNotGuessedAcrossNodes) {
  for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    const Map partial = Without(kTorchrun, name);
    EXPECT_THAT(Refusal(partial), HasSubstr(std::string(name) + " is not set"));
  }
  const Map bare = {{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  SLUICE_ASSERT_OK_AND_ASSIGN(const RankEnvironment e,
                              ReadRankEnvironment(Of(bare)));
  EXPECT_EQ(e.local_world_size, 2);
  EXPECT_EQ(e.local_rank, 1);
}

TEST(RankEnvironment, ImpossibleNumbersAreRefused) {
  const Map two = {{"RANK", "2"}, {"WORLD_SIZE", "2"}};
  EXPECT_THAT(Refusal(two), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(Refusal(With(two, {{"WORLD_SIZE", "x"}})),
              HasSubstr("WORLD_SIZE=x"));
  EXPECT_THAT(Refusal(With(two, {{"RANK", "-1"}})), HasSubstr("RANK=-1"));
  EXPECT_THAT(Refusal(With(two, {{"RANK", ""}})), HasSubstr("RANK="));
  EXPECT_THAT(Refusal(With(kTorchrun, {{"LOCAL_RANK", "4"}})),
              HasSubstr("on its node 4 of 4"));
}

}  // namespace
}  // namespace sluice::train
