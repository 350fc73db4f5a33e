// sluicectl plan train and plan validate as a process.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::sluice::testing::BinaryPath;
using ::sluice::testing::Child;
using ::sluice::testing::ChildResult;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

ChildResult Plan(const std::string& command) {
  std::vector<std::string> arguments = {BinaryPath("sluicectl"), "plan"};
  std::istringstream words(command);
  for (std::string word; words >> word;) arguments.push_back(word);
  return Child::Spawn(arguments, {})->Join();
}

void ExpectOneLine(const std::string& command, const std::string& what) {
  const ChildResult result = Plan(command);
  EXPECT_EQ(result.exit_code, 2) << command;
  EXPECT_EQ(result.out, "") << command;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1)
      << result.err;
  EXPECT_THAT(result.err, HasSubstr("error: "));
  EXPECT_THAT(result.err, HasSubstr(what)) << command;
}

std::string Data(const std::string& name) {
  return std::string(SLUICE_TEST_DATA) + "/" + name;
}

constexpr const char* kMemo =
    "train --model gpt-7b --hardware a800-80g --gpus 8 --method memo "
    "--tp 8 --cp 1 --alpha 0 ";

TEST(PlanTrain, JsonIsTheGoldenObject) {
  const ChildResult result = Plan(std::string(kMemo) + "--seq-len 1M --json");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  std::ifstream in(Data("memo_7b_1m.json"));
  const Json golden = Json::parse(in).flatten();
  const Json ours = Json::parse(result.out).flatten();
  // Every key in its place; numbers within rounding of another compiler.
  ASSERT_EQ(golden.size(), ours.size());
  auto other = ours.begin();
  for (const auto& [key, value] : golden.items()) {
    EXPECT_EQ(key, other.key());
    if (value.is_number_float()) {
      EXPECT_NEAR(value.get<double>(), other->get<double>(),
                  1e-9 * std::abs(value.get<double>()))
          << key;
    } else {
      EXPECT_EQ(value, *other) << key;
    }
    ++other;
  }
}

TEST(PlanTrain, JsonSaysWhatStopsTheLongestSequence) {
  const ChildResult result = Plan(std::string(kMemo) + "--max-seq-len --json");
  EXPECT_EQ(result.exit_code, 0);
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["max_seq_len"], 1 << 20);  // as the paper's table
  EXPECT_EQ(json["stopped_by"], "gpu_memory");
  EXPECT_EQ(json["settings"]["seq_len"], 1 << 20);
}

TEST(PlanTrain, WhatDoesNotFitIsExitStatusThreeWithTheAnswer) {
  const ChildResult result =
      Plan(std::string(kMemo) + "--seq-len 1152K --json");
  EXPECT_EQ(result.exit_code, 3);
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["reason"], "gpu_memory");
  EXPECT_GT(json["mfu"].get<double>(), 0.4);
  const ChildResult words = Plan(std::string(kMemo) + "--seq-len 1152K");
  EXPECT_EQ(words.exit_code, 3);
  EXPECT_THAT(words.out, HasSubstr("does not fit: needs"));
}

TEST(PlanTrain, AModelIsANameAConfigOrFlags) {
  const std::string rest =
      " --hardware h100-80g --gpus 8 --seq-len 256K --json";
  const ChildResult name = Plan("train --model qwen3-8b" + rest);
  const ChildResult config =
      Plan("train --model " + Data("qwen3_8b_config.json") + rest);
  const ChildResult flags = Plan(
      "train --layers 36 --hidden 4096 --heads 32 --kv-heads 8 --head-dim 128 "
      "--ffn 12288 --vocab 151936 --swiglu" +
      rest);
  EXPECT_EQ(name.exit_code, 0);
  EXPECT_EQ(name.out, config.out);
  EXPECT_EQ(name.out, flags.out);
}

TEST(PlanTrain, BadInputIsOneLine) {
  const std::string good = " --hardware a800-80g --gpus 8 --seq-len 64K";
  ExpectOneLine("train" + good, "give --model");
  ExpectOneLine("train --model gpt-8b" + good, "no model 'gpt-8b'");
  ExpectOneLine("train --model gpt-7b --layers 3" + good, "give one of them");
  ExpectOneLine("train --layers 3 --hidden 0 --heads 4" + good, "hidden is 0");
  ExpectOneLine("train --model /nonexistent/c.json" + good,
                "cannot read '/nonexistent/c.json'");
  ExpectOneLine("train --model " + Data("") + good, "cannot read");
  ExpectOneLine("train --model gpt-7b --hardware v100 --gpus 8 --seq-len 64K",
                "no hardware 'v100'");
  ExpectOneLine("train --model gpt-7b --gpus 8 --seq-len 64K", "--hardware");
  ExpectOneLine("train --model gpt-7b --hardware a800-80g --gpus 8",
                "give --seq-len");
  ExpectOneLine("train --model gpt-7b --method zigzag" + good,
                "no method 'zigzag'");
  ExpectOneLine("train --model gpt-7b --tp 3 --method memo" + good,
                "use all 8 GPUs");
  ExpectOneLine("train --model gpt-7b --tp two" + good, "--tp");
  ExpectOneLine("train --model gpt-7b --chunk 64Q" + good, "'64Q'");
  ExpectOneLine(
      "train --model gpt-7b --hardware a800-80g --gpus 8 --seq-len 1T", "'1T'");
  ExpectOneLine(
      "train --model gpt-7b --hardware a800-80g --gpus -8 --seq-len 1M",
      "--gpus is -8");
  ExpectOneLine("validate all", "all");
}

TEST(PlanTrain, HtmlIsOnePageWithoutTheNetwork) {
  const testing::TempDir folder;
  const std::string path = folder.path() + "/plan.html";
  const ChildResult result =
      Plan(std::string(kMemo) + "--seq-len 1152K --max-seq-len --html " + path);
  EXPECT_EQ(result.exit_code, 3);
  std::ifstream in(path);
  std::stringstream page;
  page << in.rdbuf();
  for (const char* part :
       {"<!doctype html>", "Memory of a GPU at its peak", "One layer of it",
        "MFU over length", "does not fit: needs", "prefers-color-scheme:dark",
        "memo 1M", "sluice 2M", "</html>"}) {
    EXPECT_THAT(page.str(), HasSubstr(part));
  }
  for (const char* remote : {"http:", "https:", "src=", "@import", "url("}) {
    EXPECT_THAT(page.str(), ::testing::Not(HasSubstr(remote)));
  }
  ExpectOneLine(std::string(kMemo) + "--seq-len 64K --html /nonexistent/x.html",
                "/nonexistent/x.html");
}

TEST(PlanValidate, PrintsEveryCellAndMeetsTheLimits) {
  const ChildResult words = Plan("validate");
  EXPECT_EQ(words.exit_code, 0) << words.out;
  for (const char* part :
       {"DeepSpeed-Ulysses", "Full swapping + memory plan", "1408K",
        "no memory", "llama-70b", "difference", "<= 1.5"}) {
    EXPECT_THAT(words.out, HasSubstr(part));
  }
  const ChildResult json = Plan("validate --json");
  EXPECT_EQ(json.exit_code, 0);
  const Json object = Json::parse(json.out);
  EXPECT_EQ(object["ok"], true);
  EXPECT_EQ(object["cells"].size(), 104u);
  EXPECT_EQ(object["lengths"].size(), 15u);
}

}  // namespace
}  // namespace sluice
