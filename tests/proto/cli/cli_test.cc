// Tests how sluiced, sluicectl and sluice-train parse their command lines.
#include "proto/cli/cli.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace sluice::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStdout;

// A program with the nested command `plan train` and the command `status`.
class Program {
 public:
  Program() {
    app_.require_subcommand(1);
    CLI::App* plan = app_.add_subcommand("plan")->fallthrough();
    plan->require_subcommand(1);
    CLI::App* train = plan->add_subcommand("train")->fallthrough();
    AddCount(*train, "--seq-len", seq_len);
    AddSize(*train, "--hbm,--gpu-memory", hbm, "memory");
    train->add_option("--model", model)->required();
    train->add_option("--lr", lr);
    train->add_option("--ranks", ranks);
    app_.add_subcommand("status");
  }
  absl::StatusOr<std::optional<int>> Read(std::vector<std::string> arguments) {
    return Parse(app_, arguments);
  }
  std::string Fault(std::vector<std::string> arguments) {
    const auto read = Read(std::move(arguments));
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(read.status().message());
  }

  int64_t seq_len = 7;
  std::optional<Bytes> hbm;
  std::string model;
  double lr = 0;
  int ranks = 0;

 private:
  CLI::App app_{"", "prog"};
};

TEST(CommandLines, SizesAndCountsAreReadFromFlags) {
  Program program;
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const auto done,
      program.Read({"plan", "train", "--model", "m", "--seq-len", "4K",
                    "--gpu-memory", "5MB"}));
  EXPECT_EQ(done, std::nullopt);
  EXPECT_EQ(program.seq_len, 4096);
  EXPECT_EQ(program.hbm, Bytes(5'000'000));
  EXPECT_THAT(Program().Fault({"plan", "train", "--hbm", "40"}),
              HasSubstr("--hbm '40' is not a size"));
}

TEST(CommandLines, ATypoGetsASuggestionAndTheCommandThatHelps) {
  // Guards against the error "not expected: 1M --seqlen".
  EXPECT_EQ(Program().Fault({"plan", "train", "--seqlen", "1M"}),
            "'--seqlen' is no flag of prog plan train: did you mean --seq-len? "
            "(see prog plan train --help)");
  EXPECT_THAT(Program().Fault({"statsu"}),
              AllOf(HasSubstr("'statsu' is no subcommand of prog: did you mean "
                              "status?"),
                    HasSubstr("(see prog --help)")));
  EXPECT_THAT(Program().Fault({"plan", "trian", "--model", "m"}),
              HasSubstr("'trian' is no subcommand of prog plan: did you mean "
                        "train?"));
  EXPECT_THAT(Program().Fault({"plan", "train", "--hmb=5MiB"}),
              HasSubstr("did you mean --hbm?"));
}

TEST(CommandLines, AWordLikeNoCommandGetsTheListOfCommands) {
  EXPECT_THAT(Program().Fault({"fly"}),
              HasSubstr("'fly' is no subcommand of prog: there are plan and "
                        "status"));
  EXPECT_THAT(Program().Fault({}), HasSubstr("say what to do"));
  EXPECT_THAT(Program().Fault({"status", "extra"}),
              HasSubstr("prog status takes no 'extra'"));
  EXPECT_THAT(Program().Fault({"plan", "train"}), HasSubstr("--model"));
  EXPECT_THAT(Program().Fault({"plan", "train", "--oh\n\x1b[1m"}),
              Not(HasSubstr("\n")));
}

TEST(CommandLines, AFlagWithAWrongOrMissingValueIsNamed) {
  const std::string help = " (see prog plan train --help)";
  EXPECT_EQ(Program().Fault({"plan", "train", "--model", "m", "--lr", "abc"}),
            "--lr 'abc' is not a number" + help);
  EXPECT_EQ(
      Program().Fault({"plan", "train", "--model", "m", "--ranks", "1.5"}),
      "--ranks '1.5' is not a whole number" + help);
  EXPECT_EQ(Program().Fault({"plan", "train", "--model"}),
            "--model needs a value: --model TEXT" + help);
  EXPECT_EQ(Program().Fault({"plan", "train", "--model", "m", "--model", "n"}),
            "--model is given twice: give one of them" + help);
}

TEST(CommandLines, HelpAndVersionEndTheProgramWithZero) {
  for (const auto& [flag, says] :
       {std::pair{"--version", "prog " + Version() + "\n"},
        std::pair{"--help", std::string("--version")}}) {
    CaptureStdout();
    const auto done = Program().Read({flag});
    EXPECT_THAT(GetCapturedStdout(), HasSubstr(says));
    ASSERT_THAT(done, testing::IsOk());
    EXPECT_EQ(*done, 0);
  }
}

TEST(Nearest, WordsWithUpToAThirdOfTheLettersWrongAreFound) {
  const std::vector<std::string> known = {"status", "budget", "evict"};
  EXPECT_EQ(Nearest("staus", known), "status");
  EXPECT_EQ(Nearest("stauts", known), "status");
  EXPECT_EQ(Nearest("bugdet", known), "budget");
  EXPECT_EQ(Nearest("evcit", known), "evict");
  EXPECT_EQ(Nearest("stats", known), "status");
  EXPECT_EQ(Nearest("xyz", known), "");
  EXPECT_EQ(Nearest("", known), "");
  EXPECT_EQ(Nearest(std::string(1 << 20, 's'), known), "");
}

}  // namespace
}  // namespace sluice::cli
