// Tests what `sluicectl plan swap` reads, prints and refuses. Golden files work
// as in ctl_render_test.cc.
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/ctl/desk/plan_commands.h"
#include "tests/support/child.h"
#include "tests/support/golden.h"
#include "tests/support/places.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::ctl {
namespace {

using ::sluice::testing::BinaryPath;
using ::sluice::testing::Child;
using ::sluice::testing::ChildResult;
using ::sluice::testing::TempDir;
using ::testing::HasSubstr;

ChildResult Swap(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(),
                   {BinaryPath("sluicectl"), "plan", "swap"});
  return Child::Spawn(arguments)->Join();
}

nlohmann::json Example() {
  return nlohmann::json::parse(Swap({"--example"}).out);
}

class PlanSwapCli : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = dir_.path() + "/node.json";
    std::ofstream(path) << text;
    return path;
  }
  // Returns the error line that sluicectl prints for the node `text`.
  std::string Refusal(const std::string& text) {
    const ChildResult result = Swap({Write(text), "--json"});
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
    return result.err;
  }
  std::string Refusal(const nlohmann::json& node) {
    return Refusal(node.dump());
  }
  TempDir dir_;
};

void ExpectGolden(const std::string& text, const std::string& name) {
  testing::ExpectGolden(text, "tests/client/golden/" + name);
}

// Returns a node with two ranks of the example and one rank without tensors.
std::string GoldenNode() {
  nlohmann::json node = Example();
  node["ranks"][0]["links"] = {"pcie0"};
  for (const char* name : {"1", "2"}) {
    node["ranks"].push_back(node["ranks"][0]);
    node["ranks"].back()["name"] = name;
  }
  node["ranks"][2]["tensors"] = nlohmann::json::array();
  node["links"][0]["d2h_bytes_per_s"] = 4e10;
  return node.dump();
}

TEST_F(PlanSwapCli, TheOutputShowsWhatEachRankDoes) {
  const std::string path = Write(GoldenNode());
  const ChildResult words = Swap({path});
  EXPECT_EQ(words.exit_code, 0) << words.err;
  EXPECT_EQ(words.err, "");
  ExpectGolden(words.out, "plan_swap.txt");
  ExpectGolden(Swap({path, "--policy", "memo"}).out, "plan_swap_memo.txt");
}

TEST_F(PlanSwapCli, JsonHasThePlannersNumbers) {
  const std::string text = GoldenNode();
  const ChildResult result = Swap({Write(text), "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  const auto problem = ReadSwapProblem(text);
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto plan = planner::PlanNodeSwap(*problem);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(json["feasible"], true);
  EXPECT_EQ(json["joint"]["step_s"], plan->joint->step_s);
  EXPECT_EQ(json["joint"]["recompute_s"], plan->joint->recompute_s);
  EXPECT_EQ(json["joint"]["moved_bytes"], plan->joint->moved_bytes);
  EXPECT_EQ(json["memo"]["step_s"], plan->memo->objective.step_s);
  EXPECT_EQ(json["memo"]["alpha"], plan->memo->alpha);
  ASSERT_EQ(json["ranks"].size(), 3u);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(json["ranks"][r]["added_s"], plan->ranks[r].added_s);
    for (size_t t = 0; t < problem->ranks[r].tensors.size(); ++t) {
      const auto& tensor = json["ranks"][r]["tensors"][t];
      EXPECT_EQ(tensor["name"], problem->ranks[r].tensors[t].name);
      EXPECT_EQ(tensor["swap"], plan->ranks[r].tensors[t].swap);
    }
  }
  EXPECT_EQ(json["links"][0]["name"], "pcie0");
  EXPECT_GT(json["links"][0]["d2h"]["use"], 0.1);
  EXPECT_EQ(json["numa"][0]["id"], 0);
  EXPECT_EQ(json["gpus"][1]["rank"], "1");
  EXPECT_FALSE(json["binding"].empty());
}

TEST_F(PlanSwapCli, ANodeThatDoesNotFitExitsWith3AndNamesTheLimit) {
  nlohmann::json node = Example();
  node["numa"][0]["host_budget_bytes"] = 4e10;
  const std::string path = Write(node.dump());
  const ChildResult words = Swap({path});
  EXPECT_EQ(words.exit_code, 3);
  EXPECT_THAT(words.out, HasSubstr("Nothing fits."));
  EXPECT_THAT(words.out, HasSubstr("host of NUMA node 0"));
  const ChildResult result = Swap({path, "--json"});
  EXPECT_EQ(result.exit_code, 3);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["feasible"], false);
  EXPECT_TRUE(json["joint"].is_null());
  EXPECT_TRUE(json["memo"].is_null());
  EXPECT_EQ(json["excess"][0]["row"], "host of NUMA node 0");
  EXPECT_GT(json["excess"][0]["excess"], 0.1);
  node["numa"][0]["host_budget_bytes"] = 0;
  const std::string none = Write(node.dump());
  EXPECT_EQ(nlohmann::json::parse(Swap({none, "--json"}).out)["numa"][0]["use"],
            1);
}

TEST_F(PlanSwapCli, ASlowLinkIsFeasibleAndItsStallIsReported) {
  nlohmann::json node = Example();
  for (auto& link : node["links"]) {
    for (const char* key :
         {"h2d_bytes_per_s", "d2h_bytes_per_s", "total_bytes_per_s"}) {
      if (link.contains(key)) link[key] = 2e9;
    }
  }
  const std::string path = Write(node.dump());
  const ChildResult words = Swap({path});
  EXPECT_EQ(words.exit_code, 0) << words.out;
  EXPECT_THAT(words.out, HasSubstr("What must be copied does not hide: the "
                                   "step takes "));
  EXPECT_THAT(words.out, HasSubstr(" %) longer, "));
  const ChildResult result = Swap({path, "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["feasible"], true);
  EXPECT_EQ(json["in_time"], false);
  EXPECT_GT(json["stall_s"], 1);
  EXPECT_FALSE(json["excess"].empty());
  EXPECT_EQ(json["ranks"][0]["stall_s"], json["stall_s"]);
}

TEST_F(PlanSwapCli, ResidentLayersSwapNothing) {
  nlohmann::json node = Example();
  node["ranks"][0]["resident_layers"] = node["ranks"][0]["layers"];
  const std::string path = Write(node.dump());
  EXPECT_THAT(Swap({path}).out,
              HasSubstr("all layers stay on the GPU: nothing is swapped"));
  const auto json = nlohmann::json::parse(Swap({path, "--json"}).out);
  EXPECT_EQ(json["ranks"][0]["moving_layers"], 0);
  for (const auto& tensor : json["ranks"][0]["tensors"]) {
    EXPECT_EQ(tensor["swap"], 0.0);
    EXPECT_EQ(tensor["recompute"], 0.0);
  }
}

// Returns the example as two kinds of layers, the second kind twice as fast.
nlohmann::json TwoKinds() {
  nlohmann::json node = Example();
  nlohmann::json& rank = node["ranks"][0];
  nlohmann::json kind;
  for (const char* key :
       {"layers", "resident_layers", "forward_layer_s", "backward_layer_s",
        "forward_d2h_fixed_bytes", "forward_h2d_fixed_bytes",
        "backward_d2h_fixed_bytes", "backward_h2d_fixed_bytes", "tensors"}) {
    kind[key] = rank[key];
    rank.erase(key);
  }
  rank["kinds"] = {kind, kind};
  rank["kinds"][0]["name"] = "moe";
  rank["kinds"][1]["name"] = "dense";
  rank["kinds"][1]["forward_layer_s"] = 0.45;
  rank["kinds"][1]["backward_layer_s"] = 1.0;
  return node;
}

TEST_F(PlanSwapCli, KindsOfLayersHaveFractionsOfTheirOwn) {
  const std::string path = Write(TwoKinds().dump());
  const ChildResult words = Swap({path});
  EXPECT_EQ(words.exit_code, 0) << words.err;
  EXPECT_THAT(words.out, HasSubstr("  moe/ffn_up"));
  EXPECT_THAT(words.out, HasSubstr("  dense/ffn_up"));
  const auto json = nlohmann::json::parse(Swap({path, "--json"}).out);
  const auto& tensors = json["ranks"][0]["tensors"];
  ASSERT_EQ(tensors.size(), 8u);
  EXPECT_EQ(tensors[3]["kind"], "moe");
  EXPECT_EQ(tensors[7]["kind"], "dense");
  EXPECT_EQ(tensors[7]["name"], "ffn_up");
  EXPECT_GT(tensors[3]["swap"], tensors[7]["swap"]);
  nlohmann::json node = TwoKinds();
  node["ranks"][0]["layers"] = 3;
  EXPECT_THAT(Refusal(node), HasSubstr("unknown field"));
  node = TwoKinds();
  node["ranks"][0]["kinds"][1].erase("layers");
  EXPECT_THAT(Refusal(node), HasSubstr("ranks[0].kinds[1].layers: is missing"));
  node = TwoKinds();
  node["ranks"][0]["kinds"][1]["name"] = "moe";
  EXPECT_THAT(Refusal(node),
              HasSubstr("ranks[0].kinds[1].name: 'moe' occurs twice"));
}

TEST_F(PlanSwapCli, WrongFieldsAreNamedWithTheirPath) {
  nlohmann::json node = Example();
  node["ranks"][0]["tensors"][1]["bytes"] = -1;
  EXPECT_THAT(Refusal(node), HasSubstr("ranks[0].tensors[1].bytes: -1 is not"));
  node = Example();
  node["ranks"][0]["tensors"][1]["byte"] = 1;
  EXPECT_THAT(Refusal(node),
              HasSubstr("ranks[0].tensors[1].\"byte\": unknown field"));
  node = Example();
  node["ranks"][0].erase("layers");
  EXPECT_THAT(Refusal(node), HasSubstr("ranks[0].layers: is missing"));
  node = Example();
  node["ranks"][0]["links"][1] = "pcie7";
  EXPECT_THAT(Refusal(node),
              HasSubstr("ranks[0].links[1]: there is no link 'pcie7'"));
  node["ranks"][0]["links"][1] = 7;
  EXPECT_THAT(Refusal(node), HasSubstr("ranks[0].links[1]: 7 is not a text"));
  node = Example();
  node["links"].push_back(node["links"][0]);
  EXPECT_THAT(Refusal(node), HasSubstr("links[2].name: 'pcie0' occurs twice"));
  node = Example();
  node["ranks"][0]["tensors"][0]["must"] = "drop";
  EXPECT_THAT(Refusal(node), HasSubstr("tensors[0].must: 'drop' is none of"));
  node = Example();
  node["numa"][0]["id"] = 0.5;
  EXPECT_THAT(Refusal(node), HasSubstr("numa[0].id: 0.5 is not a whole"));
}

TEST_F(PlanSwapCli, InputThatIsNoNodeIsOneErrorLine) {
  EXPECT_THAT(Refusal(std::string("{\"links\": [")), HasSubstr("not JSON"));
  EXPECT_THAT(Refusal(std::string("{\"ranks\": NaN}")),
              HasSubstr("NaN at byte 11"));
  EXPECT_THAT(Refusal(std::string("[]")), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal(std::string("{\"numa\": [], \"numa\": []}")),
              HasSubstr("occurs twice"));
  EXPECT_THAT(Swap({"/nonexistent/node.json"}).err, HasSubstr("cannot read"));
  EXPECT_EQ(Swap({}).exit_code, 2);
  EXPECT_THAT(Swap({Write("{}"), "--policy", "best"}).err,
              HasSubstr("there are joint and memo"));
}

}  // namespace
}  // namespace sluice::ctl
