// Runs sluicectl plan train and plan validate as processes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/child.h"
#include "tests/support/golden.h"
#include "tests/support/places.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::sluice::testing::BinaryPath;
using ::sluice::testing::Child;
using ::sluice::testing::ChildResult;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
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
  return InTree("tests/planner/train/data/" + name);
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
  // Keys must be equal and in order; numbers may differ by the rounding of
  // another compiler.
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

// Compares whole answers as users read them, and each method's numbers to six
// digits, which no other compiler changes. A change of the cost model shows as
// a diff.
TEST(PlanTrain, AnswersAreThoseThatWereReviewed) {
  std::string text;
  for (const char* const asked :
       {"--model llama-8b --hardware h100-80g --gpus 8 --seq-len 256K "
        "--compare",
        "--model mixtral-8x7b --hardware h200-141g --gpus 16 --method megatron "
        "--seq-len 128K",
        "--model gpt-175b --hardware dgx-a100-40g --gpus 8 --seq-len 1M",
        "--model qwen3-8b --hardware gh200 --gpus 2 --max-step 1h "
        "--engine python"}) {
    const ChildResult answer = Plan(fmt::format("train {}", asked));
    text += fmt::format("$ {}\n{}{}exit {}\n\n", asked, answer.out, answer.err,
                        answer.exit_code);
  }
  const auto add_numbers = [&](const std::string& asked) {
    const ChildResult answer = Plan("train --json " + asked);
    text += "$ " + asked + "\n";
    const Json numbers = Json::parse(answer.out).flatten();
    for (const auto& [key, value] : numbers.items()) {
      text += value.is_number_float()
                  ? fmt::format("{} {:.6g}\n", key, value.get<double>())
                  : fmt::format("{} {}\n", key, value.dump());
    }
  };
  for (const char* const method : {"megatron", "ulysses", "memo", "fpdt",
                                   "alst", "upipe", "ring", "sluice"}) {
    for (const char* const on :
         {"--model gpt-7b --hardware a800-80g --gpus 8 --seq-len 128K",
          "--model llama-70b --hardware b200 --gpus 16 --seq-len 64K "
          "--global-batch 32 --max-seq-len"}) {
      add_numbers(fmt::format("--method {} {}", method, on));
    }
  }
  for (const char* const settings :
       {"--method megatron --tp 4 --dp 1 --pp 2 --interleave 2 --recompute "
        "selective --model gpt-7b --hardware a800-80g --gpus 8 --seq-len 16K",
        "--method fpdt --chunk 4K --model gpt-2.7b --hardware fpdt-a100-40g "
        "--gpus 4 --seq-len 128K",
        "--engine trainer --sp 8 --alpha 0.5 --no-keep --chunk 16K --model "
        "llama-8b --hardware h100-80g --gpus 8 --seq-len 256K",
        "--engine python --sp 4 --dp 2 --chunk 8K --model llama-8b --hardware "
        "h100-80g --gpus 8 --seq-len 256K",
        "--method memo --tp 2 --cp 2 --pp 2 --alpha 0.25 --model gpt-7b "
        "--hardware dgx-a100 --gpus 8 --seq-len 128K",
        "--method megatron --model mixtral-8x7b --tp 2 --cp 2 --dp 4 --ep 8 "
        "--zero 1 --hardware h200-141g --gpus 16 --seq-len 32K"}) {
    add_numbers(settings);
  }
  testing::ExpectGolden(text, "tests/golden/planner/train_answers.txt");
}

TEST(PlanTrain, JsonSaysWhatStopsTheLongestSequence) {
  const ChildResult result = Plan(std::string(kMemo) + "--max-seq-len --json");
  EXPECT_EQ(result.exit_code, 0);
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["max_seq_len"], 1 << 20);  // as in MEMO's table
  EXPECT_EQ(json["stopped_by"], "gpu_memory");
  EXPECT_EQ(json["settings"]["seq_len"], 1 << 20);
}

TEST(PlanTrain, AnAnswerThatDoesNotFitHasExitStatusThree) {
  const ChildResult result =
      Plan(std::string(kMemo) + "--seq-len 1152K --json");
  EXPECT_EQ(result.exit_code, 3);
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["reason"], "gpu_memory");
  for (const char* speed : {"mfu", "tokens_per_gpu_per_s", "step_s"}) {
    EXPECT_TRUE(json[speed].is_null()) << speed;
  }
  EXPECT_TRUE(json["breakdown"].is_null());
  const ChildResult words = Plan(std::string(kMemo) + "--seq-len 1152K");
  EXPECT_EQ(words.exit_code, 3);
  EXPECT_THAT(words.out, HasSubstr("does not fit: needs"));
  for (const char* speed : {"MFU", "tokens per GPU", "the step", " s "}) {
    EXPECT_THAT(words.out, ::testing::Not(HasSubstr(speed))) << words.out;
  }
}

TEST(PlanTrain, AFigureWithoutAMeasurementSaysSo) {
  const std::string rest = " --gpus 8 --seq-len 256K --global-batch 16 ";
  const std::string h100 = "train --model llama-8b --hardware h100-80g" + rest;
  EXPECT_THAT(Plan(h100).out,
              HasSubstr("% (not validated: no published table has sluice on "
                        "h100-80g)"));
  const Json json = Json::parse(Plan(h100 + "--json").out);
  EXPECT_TRUE(json["speed_validated_on"].is_null());
  EXPECT_TRUE(json["memory_validated_on"].is_null());
  const std::string a800 = "train --model gpt-7b --hardware a800-80g" + rest;
  EXPECT_THAT(Plan(a800 + "--method memo").out,
              HasSubstr("% (validated on MEMO, tables 3 to 7)"));
  EXPECT_EQ(Json::parse(
                Plan(a800 + "--method memo --json").out)["speed_validated_on"],
            "MEMO, tables 3 to 7");
  // Sluice itself is in no table.
  EXPECT_THAT(Plan(a800).out, HasSubstr("(not validated: no published table "
                                        "has sluice on a800-80g)"));
}

TEST(PlanTrain, AnUnknownCostOfReorganisationIsNotedAndCountsNoSeconds) {
  const std::string asked =
      "train --model llama-8b --hardware h100-80g --gpus 8 --seq-len 32K "
      "--global-batch 8 --method megatron --tp 1 --cp 1 --zero 3";
  const ChildResult words = Plan(asked);
  EXPECT_EQ(words.exit_code, 0);
  EXPECT_THAT(words.out, HasSubstr("seen to on a800-80g; what that costs on "
                                   "h100-80g was never measured"));
  const Json json = Json::parse(Plan(asked + " --json").out);
  EXPECT_EQ(json["breakdown"]["reorganisation"], 0.0);
  EXPECT_EQ(json["notes"].size(), 1u);
}

TEST(PlanTrain, A100MeansADgxAndTheAnswerSaysSo) {
  const ChildResult words =
      Plan("train --model gpt-7b --hardware a100-80g --gpus 8 --seq-len 64K");
  EXPECT_EQ(words.exit_code, 0);
  EXPECT_THAT(words.out, HasSubstr("8 x dgx-a100,"));
  EXPECT_THAT(words.out, HasSubstr("note: DGX A100, nodes of 8 (also read for "
                                   "a100-80g)"));
}

TEST(PlanTrain, CompareGivesEachMethodsOwnAnswer) {
  const std::string where =
      "--model llama-8b --hardware h100-80g --gpus 8 --seq-len 256K ";
  const ChildResult words = Plan("train --compare " + where);
  EXPECT_EQ(words.exit_code, 0);
  EXPECT_THAT(words.out, HasSubstr("TOKENS/S PER GPU"));
  const Json methods =
      Json::parse(Plan("train --compare --json " + where).out)["methods"];
  ASSERT_EQ(methods.size(), 8u);
  for (const Json& one : methods) {
    const std::string name = one["method"];
    const Json alone = Json::parse(
        Plan("train --max-seq-len --json --method " + name + " " + where).out);
    EXPECT_THAT(words.out, HasSubstr("\n  " + name + " "));
    for (const char* key :
         {"fits", "reason", "mfu", "tokens_per_gpu_per_s", "gpu_peak_bytes",
          "max_seq_len", "max_seq_len_step_s", "stopped_by", "settings",
          "speed_validated_on", "memory_validated_on"}) {
      EXPECT_EQ(one[key], alone[key]) << name << " " << key;
    }
  }
}

TEST(PlanTrain, TheLongestSequenceKeepsTheLimitOfAStepsTime) {
  const std::string where =
      "train --model llama-8b --hardware h100-80g --gpus 32 --global-batch 1 "
      "--json ";
  const Json within = Json::parse(Plan(where + "--max-step 30min").out);
  const int64_t tokens = within["max_seq_len"];
  EXPECT_EQ(within["stopped_by"], "step_time");
  EXPECT_LE(within["max_seq_len_step_s"], 1800);
  const auto step_of = [&](int64_t length) {
    const Json one =
        Json::parse(Plan(where + "--seq-len " + std::to_string(length)).out);
    return one["step_s"].get<double>();
  };
  EXPECT_EQ(step_of(tokens), within["max_seq_len_step_s"]);
  EXPECT_GT(step_of(tokens + 65536), 1800);
  // Without the limit, host memory ends the search, at a longer sequence.
  const Json without = Json::parse(Plan(where + "--max-seq-len").out);
  EXPECT_GT(without["max_seq_len"], tokens);
  EXPECT_EQ(without["stopped_by"], "host_memory");
  const ChildResult none = Plan(where + "--max-step 0.1s");
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_EQ(Json::parse(none.out)["max_seq_len"], 0);
}

// Returns the JSON that the page of --html draws.
Json PageData(const std::string& page) {
  const std::string begin = "type=\"application/json\">";
  const size_t at = page.find(begin) + begin.size();
  return Json::parse(page.substr(at, page.find("</script>", at) - at));
}

TEST(PlanTrain, IfNoLengthFitsTextAndHtmlSaySo) {
  const testing::TempDir folder;
  const std::string path = folder.path() + "/plan.html";
  const ChildResult words = Plan(
      "train --model llama-70b --hardware h100-80g --gpus 1 --max-seq-len "
      "--html " +
      path);
  EXPECT_EQ(words.exit_code, 3);
  EXPECT_THAT(words.out, HasSubstr("not even 64K tokens: stopped by"));
  EXPECT_THAT(words.out, ::testing::Not(HasSubstr("0M")));
  std::ifstream in(path);
  std::stringstream page;
  page << in.rdbuf();
  EXPECT_EQ(PageData(page.str())["answer"]["max_seq_len"], 0);
}

TEST(PlanTrain, TheAnswerIsForTheRequestedEngineAndNamesIt) {
  const std::string asked =
      "train --model llama-8b --hardware h100-80g --gpus 8 --seq-len 1M "
      "--global-batch 1 ";
  for (const char* engine : {"trainer", "python"}) {
    const std::string named = asked + "--engine " + engine;
    EXPECT_THAT(Plan(named).out,
                HasSubstr("settings    engine " + std::string(engine)));
    const Json json = Json::parse(Plan(named + " --json").out);
    EXPECT_EQ(json["settings"]["engine"], engine);
    EXPECT_EQ(json["settings"]["zero"], engine[0] == 't' ? 1 : 3);
    EXPECT_EQ(json["settings"]["alpha"].is_null(), engine[0] == 'p');
  }
  // 8M tokens are too long for engine python, which reruns one layer at a time.
  // 70B parameters are too many for the trainer, in which each rank has all
  // weights.
  const Json longest = Json::parse(
      Plan("train --model llama-8b --hardware h100-80g --gpus 8 --seq-len 8M "
           "--global-batch 1 --json")
          .out);
  EXPECT_EQ(longest["settings"]["engine"], "trainer");
  const Json sharded = Json::parse(
      Plan("train --model llama-70b --hardware h100-80g --gpus 64 --seq-len 1M "
           "--json")
          .out);
  EXPECT_EQ(sharded["settings"]["engine"], "python");
  ExpectOneLine(asked + "--engine cuda", "no engine 'cuda'");
  ExpectOneLine(asked + "--engine python --method memo", "--engine");
}

TEST(PlanTrain, IdleGpusAreCountedAndHeadsNamedAsTheirCause) {
  const std::string asked =
      "train --hardware h100-80g --seq-len 128K --json --model ";
  const Json json = Json::parse(Plan(asked + "llama-8b --gpus 4096").out);
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["settings"]["gpus"], 4096);
  EXPECT_EQ(json["settings"]["idle_gpus"], 3584);
  EXPECT_EQ(json["idle_because"], "heads");
  EXPECT_EQ(json["batch_using_all"], 128);
  const Json all =
      Json::parse(Plan(asked + "llama-8b --gpus 4096 --global-batch 128").out);
  EXPECT_FALSE(all["settings"].contains("idle_gpus"));
  EXPECT_FALSE(all.contains("idle_because"));
  const std::string one =
      "train --hardware h100-80g --model qwen2.5-7b --gpus 8 --seq-len 1M "
      "--global-batch 1 --engine python";
  const ChildResult words = Plan(one);
  EXPECT_THAT(words.out, HasSubstr("1 of 8 GPUs idle"));
  EXPECT_THAT(words.out, HasSubstr("28 attention heads"));
  EXPECT_EQ(Json::parse(Plan(one + " --json").out)["batch_using_all"], 2);
  // The answer also names idle GPUs if the length does not fit.
  const Json long_one = Json::parse(
      Plan("train --hardware h100-80g --model llama-8b --gpus 64 --seq-len 64M "
           "--global-batch 1 --engine python --json")
          .out);
  EXPECT_EQ(long_one["fits"], false);
  EXPECT_EQ(long_one["idle_because"], "heads");
  EXPECT_EQ(long_one["settings"]["idle_gpus"], 32);
  EXPECT_FALSE(long_one["settings"].contains("row_parts"));
}

TEST(PlanTrain, RowPartsAreNamed) {
  const std::string asked =
      "train --hardware h100-80g --model llama-8b --gpus 64 --seq-len 8M "
      "--global-batch 1 ";
  const Json json = Json::parse(Plan(asked + "--json").out);
  EXPECT_EQ(json["settings"]["sp"], 64);
  EXPECT_EQ(json["settings"]["row_parts"], 2);
  EXPECT_FALSE(json["settings"].contains("idle_gpus"));
  EXPECT_THAT(Plan(asked).out, HasSubstr("in 2 parts"));
}

// A larger --global-batch would contradict --batch and --accumulate.
TEST(PlanTrain, ARemedyDropsFlagsThatContradictIt) {
  const std::string asked =
      "train --model llama-8b --hardware h100-80g --gpus 64 --method ulysses "
      "--seq-len 2M ";
  const Json json =
      Json::parse(Plan(asked + "--batch 1 --accumulate 1 --json").out);
  EXPECT_EQ(json["fits"], false);
  for (const Json& remedy : json["would_fit"]) {
    if (remedy["flag"] != "--global-batch") continue;
    EXPECT_EQ(remedy["without"], Json({"--batch", "--accumulate"}));
  }
}

// The remedy in a refusal is a command that works as it is printed.
TEST(PlanTrain, RemediesFitAsPrinted) {
  const std::string asked =
      "train --model llama-70b --hardware h100-80g --gpus 32 --seq-len 8M ";
  const ChildResult words = Plan(asked);
  EXPECT_EQ(words.exit_code, 3);
  EXPECT_THAT(words.out, HasSubstr("would fit"));
  const Json json = Json::parse(Plan(asked + "--json").out);
  EXPECT_GE(json["would_fit"].size(), 2u);
  for (const Json& remedy : json["would_fit"]) {
    const std::string change = remedy["flag"].get<std::string>() + " " +
                               remedy["value"].get<std::string>();
    EXPECT_THAT(words.out, HasSubstr(change));
    std::string command = asked + change;
    for (const char* flag : {"--seq-len 8M ", "--gpus 32 "}) {
      const std::string name(flag, std::string_view(flag).find(' '));
      if (remedy["flag"] == name)
        command.erase(command.find(flag), strlen(flag));
    }
    EXPECT_EQ(Plan(command).exit_code, 0) << command;
  }
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

TEST(PlanTrain, ConfigFieldsBeyondTheShapeAreNoted) {
  const testing::TempDir folder;
  const std::string path = folder.path() + "/config.json";
  const auto notes = [&](const char* config, const char* tokens) {
    std::ofstream(path) << config;
    const ChildResult words =
        Plan("train --hardware h100-80g --gpus 8 --model " + path +
             " --seq-len " + tokens);
    EXPECT_EQ(words.exit_code, 0) << words.err;
    return words.out;
  };
  const char* gpt2 = R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768,
    "n_head": 12, "vocab_size": 50257, "n_positions": 1024,
    "torch_dtype": "float32"})";
  EXPECT_THAT(notes(gpt2, "1M"),
              AllOf(HasSubstr("note: the model has 1,024 learned positions, so "
                              "its table must be made longer for 1M tokens"),
                    HasSubstr("note: torch_dtype \"float32\": counted in")));
  EXPECT_THAT(notes(gpt2, "1K"), ::testing::Not(HasSubstr("learned")));
}

// Flags and sizes of sluice-train mean the same to sluicectl plan train.
TEST(PlanTrain, TakesTheTrainersFlags) {
  const std::string model = "train --hardware a800-80g --method memo ";
  const ChildResult own =
      Plan(model +
           "--layers 32 --hidden 4096 --heads 32 --swiglu --gpus 8 --seq-len "
           "1572864 --global-batch 8 --json");
  const ChildResult trainers = Plan(
      model +
      "--layers 32 --hidden 4K --heads 32 --arch llama --ranks 8 --seq-len "
      "1.5M --batch 2 --accumulate 4 --alpha auto --json");
  EXPECT_NE(own.out, "");
  EXPECT_EQ(own.out, trainers.out);
  const std::string good =
      "train --model gpt-7b --hardware a800-80g --gpus 8 --seq-len 64K ";
  ExpectOneLine(good + "--global-batch 8 --batch 3", "--global-batch 8 is not");
  // As in sluice-train, the factor that is not given follows.
  const std::string batches = good + "--json --global-batch 8 ";
  EXPECT_EQ(Plan(batches).out, Plan(batches + "--batch 2").out);
  EXPECT_EQ(Plan(batches).out, Plan(batches + "--accumulate 4").out);
  ExpectOneLine(good + "--batch -4 --accumulate -4", "--batch is -4");
  ExpectOneLine(good + "--accumulate 4294967296 --batch 4294967296",
                "--batch is 4294967296");
  ExpectOneLine(good + "--alpha much", "--alpha 'much'");
  ExpectOneLine(good + "--max-step 0h", "--max-step is 0 s");
  ExpectOneLine(good + "--max-step 3y", "--max-step");
  ExpectOneLine(good + "--seqlen 1M", "did you mean --seq-len?");
}

TEST(PlanTrain, IfNoLengthFitsNoLengthOfZeroIsPrinted) {
  const ChildResult result = Plan(
      "train --model llama-70b --hardware a100-40g --gpus 1 --method megatron "
      "--max-seq-len");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out,
              HasSubstr("longest     not even 64K tokens: stopped by"));
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("0M tokens")));
}

TEST(PlanTrain, SearchedSettingsAreNamedAndMayBeGiven) {
  const std::string where = " --hardware h100-80g --gpus 16 --seq-len 8K ";
  const auto settings = [&](const std::string& asked) {
    return Json::parse(Plan("train --json" + where + asked).out)["settings"];
  };
  const Json upipe =
      settings("--model llama-8b --method upipe --sp 8 --cp 2 --dp 1");
  EXPECT_EQ(upipe["sp"], 8);
  EXPECT_EQ(upipe["cp"], 2);
  EXPECT_FALSE(upipe.contains("recompute"));
  const std::string ring = "--model llama-8b --method ring ";
  EXPECT_EQ(settings(ring)["recompute"], "none");
  EXPECT_EQ(settings(ring + "--recompute selective")["recompute"], "selective");
  const Json megatron = settings(
      "--model mixtral-8x7b --method megatron --pp 2 --ep 4 --interleave 4");
  EXPECT_EQ(megatron["ep"], 4);
  EXPECT_EQ(megatron["interleave"], 4);
}

// People work in folders with downloaded models.
TEST(PlanTrain, AFolderWithTheNameOfAPresetIsNotRead) {
  const testing::TempDir folder;
  std::filesystem::create_directory(folder.File("llama-1b"));
  std::filesystem::create_directory(folder.File("h100-80g"));
  const std::string asked =
      BinaryPath("sluicectl") +
      " plan train --model llama-1b --hardware h100-80g --gpus 1 --seq-len 8K";
  const ChildResult result =
      Child::Spawn({"/bin/sh", "-c", "cd " + folder.path() + " && " + asked},
                   {})
          ->Join();
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(PlanTrain, BadInputIsOneLine) {
  const std::string good = " --hardware a800-80g --gpus 8 --seq-len 64K";
  ExpectOneLine("train" + good, "give --model");
  ExpectOneLine("train --model gpt-8b" + good, "no model 'gpt-8b'");
  ExpectOneLine("train --model gpt-7b --layers 3" + good, "give one of them");
  ExpectOneLine("train --layers 3 --hidden 0 --heads 4" + good, "hidden is 0");
  ExpectOneLine("train --layers 2 --hidden 100 --heads 3" + good,
                "hidden 100 does not divide by 3 heads");
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
  ExpectOneLine("train --model gpt-7b --method ring --recompute all" + good,
                "no recompute 'all'");
  ExpectOneLine("train --model gpt-7b --method upipe --zero 1" + good,
                "--zero is 1");
  ExpectOneLine("train --model gpt-7b --method megatron --ep 2" + good,
                "--ep is 2");
  ExpectOneLine("train --model mixtral-8x7b" + good, "mixture of 8 experts");
  ExpectOneLine("train --model gpt-7b --dp 3 --method memo" + good,
                "global batch of 16");
  ExpectOneLine("train --model gpt-7b --tp two" + good, "--tp");
  ExpectOneLine("train --model gpt-7b --chunk 64Q" + good, "'64Q'");
  ExpectOneLine(
      "train --model gpt-7b --hardware a800-80g --gpus 8 --seq-len 1T", "'1T'");
  ExpectOneLine(
      "train --model gpt-7b --hardware a800-80g --gpus -8 --seq-len 1M",
      "--gpus is -8");
  ExpectOneLine("train --layers 2 --hidden 64 --heads 2 --arch rnn" + good,
                "--arch 'rnn'");
  ExpectOneLine(
      "train --layers 2 --hidden 64 --heads 2 --arch gpt --swiglu" + good,
      "--swiglu");
  ExpectOneLine("train --model gpt-7b --hardware a800-80g --gpus 8 --seq-len 0",
                "--seq-len is 0");
  ExpectOneLine("train --model gpt-7b --json --html -" + good, "--html -");
  const testing::TempDir folder;
  std::ofstream(folder.File("m.json")) << std::string((1 << 20) + 1, ' ');
  ExpectOneLine("train --model " + folder.File("m.json") + good, "1 MiB");
  ExpectOneLine("validate all", "all");
}

TEST(PlanTrain, HtmlIsOnePageThatLoadsNothing) {
  const testing::TempDir folder;
  const std::string path = folder.path() + "/plan.html";
  const ChildResult result =
      Plan(std::string(kMemo) + "--seq-len 1152K --max-seq-len --html " + path);
  EXPECT_EQ(result.exit_code, 3);
  std::ifstream in(path);
  std::stringstream page;
  page << in.rdbuf();
  EXPECT_THAT(page.str(), HasSubstr("</html>"));
  const Json data = PageData(page.str());
  EXPECT_EQ(data["answer"]["fits"], false);
  EXPECT_TRUE(data["answer"]["mfu"].is_null());
  EXPECT_THAT(data["words"]["reason"], HasSubstr("does not fit: needs"));
  EXPECT_FALSE(data["words"]["would_fit"].empty());
  EXPECT_GT(data["memory"]["skeletal"], 0);
  EXPECT_THAT(data["words"]["not_validated"],
              HasSubstr("fpdt, alst, upipe, ring, sluice."));
  std::map<std::string, int64_t> longest;
  for (const Json& curve : data["curves"]) {
    longest[curve["method"]] = curve["points"].back()[0];
    EXPECT_EQ(curve["chosen"], curve["method"] == "memo");
  }
  EXPECT_EQ(longest["memo"], 1024 * 1024);
  EXPECT_EQ(longest["sluice"], 9984 * 1024);
  for (const char* remote : {"http:", "https:", "src=", "@import", "url("}) {
    EXPECT_THAT(page.str(), ::testing::Not(HasSubstr(remote)));
  }
  Plan(std::string(kMemo) + "--seq-len 128K --html " + path);
  std::ifstream fits(path);
  page.str("");
  page << fits.rdbuf();
  const Json fast = PageData(page.str());
  EXPECT_GT(fast["answer"]["breakdown"]["attention"], 0);
  EXPECT_GT(fast["layer"]["forward"]["copy_out"], 0);
  EXPECT_THAT(fast["about"]["speed_evidence"], HasSubstr("MEMO"));
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
  EXPECT_THAT(words.out, Not(ContainsRegex("[TCSDP]P 1[ \n]")))
      << "a degree of 1 is left out";
  const ChildResult json = Plan("validate --json");
  EXPECT_EQ(json.exit_code, 0);
  const Json object = Json::parse(json.out);
  EXPECT_EQ(object["ok"], true);
  EXPECT_EQ(object["cells"].size(), 104u);
  EXPECT_EQ(object["lengths"].size(), 15u);
  EXPECT_EQ(object["rows"].size(), 19u);
  EXPECT_EQ(object["judged"].size(), 4u);
  EXPECT_EQ(object["rows"][0]["published"], 2280.0);
}

}  // namespace
}  // namespace sluice
