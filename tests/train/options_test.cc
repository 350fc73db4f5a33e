#include "client/train/launch/options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <ostream>
#include <set>
#include <sstream>
#include <utility>

#include "client/train/launch/outcome.h"
#include "client/train/launch/private_daemon.h"
#include "proto/base/cgroup.h"
#include "proto/base/shortage.h"
#include "tests/support/case_name.h"
#include "tests/support/status_matchers.h"

namespace sluice::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

TEST(CommandLine, ReadsEveryKindOfFlag) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const ParsedCommand parsed,
      ParseCommandLine(Split(
          "train --arch gpt --heads 8 --hidden 64 --seq-len 333 --alpha 0.25 "
          "--dtype bf16 --method recompute --hbm 36MiB --ranks 2 --json")));
  const RunOptions& o = parsed.options;
  EXPECT_EQ(o.command, Command::kTrain);
  EXPECT_FALSE(o.model.rope);
  EXPECT_EQ(o.model.name, "gpt");
  EXPECT_EQ(o.model.kv_heads, 8);  // as many as heads
  EXPECT_EQ(o.model.max_positions, 333);
  EXPECT_EQ(o.alpha, 0.25);
  EXPECT_EQ(o.dtype, Dtype::kBf16);
  EXPECT_EQ(o.method, Method::kRecompute);
  EXPECT_EQ(o.hbm, MiB(36));
  EXPECT_TRUE(o.json);
}

TEST(CommandLine, AJobsLabelHasUpTo64Characters) {
  for (const size_t size : {1, 64, 65}) {
    EXPECT_EQ(ParseCommandLine({"train", "--job", std::string(size, 'j')}).ok(),
              size <= 64)
        << size;
  }
}

TEST(CommandLine, AcceptsAKernelWhereItCanCompute) {
  EXPECT_EQ(ParseCommandLine(Split("train"))->options.attention,
            AttentionKernel::kAuto);
  for (const auto& [line, kernel] :
       {std::pair("train --attention cudnn --dtype bf16",
                  AttentionKernel::kCudnn),
        std::pair("train --attention efficient", AttentionKernel::kEfficient),
        std::pair("check --socket x --attention flash --dtype bf16",
                  AttentionKernel::kFlash),
        std::pair("profile --attention cudnn", AttentionKernel::kCudnn)}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const ParsedCommand parsed,
                                ParseCommandLine(Split(line)));
    EXPECT_EQ(parsed.options.attention, kernel) << line;
  }
}

// --chunk fixes the prefetch, so that equal values of --chunk give equal runs.
TEST(CommandLine, PrefetchIsMeasuredOnlyWithoutAChunkSize) {
  SLUICE_ASSERT_OK_AND_ASSIGN(ParsedCommand parsed,
                              ParseCommandLine(Split("train")));
  EXPECT_EQ(parsed.options.chunk, 0);
  EXPECT_EQ(parsed.options.prefetch, 0);
  EXPECT_FALSE(parsed.options.order.has_value());
  SLUICE_ASSERT_OK_AND_ASSIGN(parsed,
                              ParseCommandLine(Split("train --chunk 1K")));
  EXPECT_EQ(parsed.options.chunk, 1024);
  EXPECT_EQ(parsed.options.prefetch, 2);
  EXPECT_FALSE(parsed.options.order.has_value());  // the ranks choose it
  SLUICE_ASSERT_OK_AND_ASSIGN(
      parsed, ParseCommandLine(Split("check --backward-order queries")));
  EXPECT_EQ(parsed.options.chunk, 512);
  EXPECT_EQ(parsed.options.order, stream::BackwardOrder::kQueriesOuter);
}

// Scripts may pass --rerun "$X" with an unset X.
TEST(CommandLine, AnEmptyRerunCountsAsNotGiven) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const ParsedCommand parsed,
                              ParseCommandLine({"train", "--rerun", ""}));
  EXPECT_FALSE(parsed.options.rerun.has_value());
}

// sluicectl plan train accepts these sizes, too.
TEST(CommandLine, AcceptsTheSizesAndNamesOfTheOtherPrograms) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const ParsedCommand parsed,
      ParseCommandLine(
          Split("train --gpus 2 --seq-len 1.5K --chunk 0.5K --vocab 32K "
                "--gpu-memory 36MB --host-memory 1GiB --batch 2 "
                "--global-batch 8")));
  const RunOptions& o = parsed.options;
  EXPECT_EQ(o.ranks, 2);
  EXPECT_EQ(o.seq_len, 1536);
  EXPECT_EQ(o.chunk, 512);
  EXPECT_EQ(o.model.vocab, 32768);
  EXPECT_EQ(o.hbm, Bytes(36'000'000));
  EXPECT_EQ(o.host, GiB(1));
  EXPECT_EQ(o.batch * o.accumulate, 8);
}

TEST(CommandLine, DeviceNamesTheDriverThatTheDaemonMustHave) {
  for (const auto& [flag, driver] : {std::pair("", ""),
                                     {"--device auto", ""},
                                     {"--device sim", "sim"},
                                     {"--device cuda", "cuda"}}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const ParsedCommand parsed,
        ParseCommandLine(Split(std::string("train ") + flag)));
    EXPECT_EQ(parsed.options.driver, driver) << flag;
  }
  EXPECT_THAT(ParseCommandLine(Split("train --device tpu")).status().message(),
              ::testing::HasSubstr("must be one of auto, cuda, sim"));
  EXPECT_THAT(ParseCommandLine(Split("train --private --device cuda"))
                  .status()
                  .message(),
              ::testing::HasSubstr("simulated GPUs only"));
}

TEST(CommandLine, HelpHasEveryExitStatus) {
  for (const char* command : {"", "train "}) {
    ::testing::internal::CaptureStdout();
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const ParsedCommand parsed,
        ParseCommandLine(Split(std::string(command) + "--help")));
    EXPECT_EQ(parsed.exit, 0);
    std::string help = ::testing::internal::GetCapturedStdout();
    help = help.substr(help.rfind("Exit status"));
    for (const char* says : {"0 done", "1 a fault", "2 bad", "3 GPU or host",
                             "4 a disk", "5 too many open", "130 "}) {
      EXPECT_THAT(help, ::testing::HasSubstr(says)) << command;
    }
  }
}

TEST(CommandLine, EachHelpHasItsOwnExamplesAndVersionIsPrinted) {
  std::set<std::string> footers;
  for (const char* command : {"", "train ", "check ", "profile "}) {
    ::testing::internal::CaptureStdout();
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const ParsedCommand parsed,
        ParseCommandLine(Split(std::string(command) + "--help")));
    const std::string help = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(parsed.exit, 0);
    const size_t at = help.find("\nExample");
    ASSERT_NE(at, std::string::npos) << command;
    EXPECT_THAT(help.substr(at),
                HasSubstr("sluice-train " + std::string(command)));
    EXPECT_TRUE(footers.insert(help.substr(at)).second) << command;
  }
  ::testing::internal::CaptureStdout();
  SLUICE_ASSERT_OK_AND_ASSIGN(const ParsedCommand parsed,
                              ParseCommandLine({"--version"}));
  EXPECT_EQ(parsed.exit, 0);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              HasSubstr("sluice-train 0."));
}

TEST(CommandLine, CheckHasADaemonOfItsOwnUnlessASocketIsNamed) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const ParsedCommand own,
                              ParseCommandLine(Split("check")));
  EXPECT_TRUE(own.options.private_daemon);
  SLUICE_ASSERT_OK_AND_ASSIGN(const ParsedCommand named,
                              ParseCommandLine(Split("check --socket /s")));
  EXPECT_FALSE(named.options.private_daemon);
}

TEST(CommandLine, ReadsFractionsByClass) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const ParsedCommand parsed,
      ParseCommandLine(Split("check --fractions "
                             "norm2=0,ffn_up=0.5,ffn_activation=keep:0.25+0.5,"
                             "norm1=keep:1")));
  const stream::FractionMap& f = parsed.options.fractions;
  ASSERT_EQ(f.size(), 4u);
  EXPECT_EQ(f.at("norm2"), (stream::ClassFractions{0, 0}));
  EXPECT_EQ(f.at("ffn_up"), (stream::ClassFractions{0, 0.5}));
  EXPECT_EQ(f.at("ffn_activation"), (stream::ClassFractions{0.25, 0.5}));
  EXPECT_EQ(f.at("norm1"), (stream::ClassFractions{1, 0}));
}

TEST(CommandLine, AcceptsFractionsOfEveryClass) {
  for (const stream::ClassTraits& c : stream::kClasses) {
    const std::string flags =
        fmt::format("train --fractions {}=keep:1", c.name);
    SLUICE_ASSERT_OK_AND_ASSIGN(const ParsedCommand parsed,
                                ParseCommandLine(Split(flags)));
    EXPECT_EQ(parsed.options.fractions.at(c.name),
              (stream::ClassFractions{1, 0}));
  }
}

struct BadLine {
  const char* line;
  const char* says;

  friend void PrintTo(const BadLine& bad, std::ostream* out) {
    *out << bad.line;
  }
};

class BadLines : public ::testing::TestWithParam<BadLine> {};

TEST_P(BadLines, AreRefusedInOneLine) {
  const auto parsed = ParseCommandLine(Split(GetParam().line));
  EXPECT_EQ(ExitCode(parsed.status()), kExitBadInput);
  EXPECT_THAT(std::string(parsed.status().message()),
              AllOf(HasSubstr(GetParam().says), Not(HasSubstr("\n"))));
}

INSTANTIATE_TEST_SUITE_P(
    Attention, BadLines,
    ::testing::Values(BadLine{"train --attention fast",
                              "must be one of auto, cudnn, efficient, flash"},
                      BadLine{"train --attention fa3", "must be one of auto,"},
                      BadLine{"train --attention cudnn",
                              "--attention cudnn takes at most 2 bytes"},
                      BadLine{"train --attention flash --dtype fp32",
                              "--attention flash takes at most 2 bytes"},
                      BadLine{"train --attention cudnn --dtype bf16 --arch gpt "
                              "--hidden 288 --heads 2",
                              "at most 128, and this model's have 144"},
                      BadLine{"train --attention flash --dtype bf16 --arch gpt "
                              "--hidden 120 --heads 2",
                              "a multiple of 8 and at most 256"},
                      BadLine{"train --private --attention cudnn --dtype bf16",
                              "and this run's are simulated"},
                      BadLine{"check --attention efficient",
                              "and this run's are simulated"},
                      BadLine{"profile --private --attention flash",
                              "and this run's are simulated"}),
    ::sluice::testing::CaseName());

INSTANTIATE_TEST_SUITE_P(
    CommandLine, BadLines,
    ::testing::Values(
        BadLine{"", "subcommand"}, BadLine{"fly", "fly"},
        BadLine{"train --seq-len 0", "--seq-len 0"},
        BadLine{"train --seq-len -5", "--seq-len -5"},
        BadLine{"train --seq-len many", "--seq-len"},
        BadLine{"train --chunk 0", "--chunk 0"},
        BadLine{"train --prefetch 0", "--prefetch 0"},
        BadLine{"train --backward-order up",
                "must be one of auto, keys, queries"},
        BadLine{"train --ranks 0", "--ranks 0"},
        BadLine{"train --nonsense 1", "--nonsense"},
        BadLine{"train --alpha 1.5", "--alpha '1.5'"},
        BadLine{"train --alpha nan", "--alpha 'nan'"},
        BadLine{"check --fractions norm2", "'norm2': write"},
        BadLine{"check --fractions =1", "'=1': write"},
        BadLine{"check --fractions output_gradient=keep:0.5+0.5",
                "output_gradient: keep 0.5: it stays on the GPU "
                "whole or not at all"},
        BadLine{"train --rerun 1.5",
                "--rerun '1.5': must be a part of the tokens"},
        BadLine{"train --rerun 0.5 --alpha 0.5",
                "--rerun 0.5: with it --alpha 0.5 must be 0"},
        BadLine{"train --rerun 0.5 --fractions norm2=0.5",
                "--fractions norm2 must be 0"},
        BadLine{"train --layers 4 --rerun-layers 5", "--rerun-layers 5"},
        BadLine{"check --fractions lse=0.5",
                "lse: keep 0 and swap 0.5 must be 1 together"},
        BadLine{"check --backward-order keys --fractions key_gradient=keep:1",
                "key_gradient is no class of this step"},
        BadLine{"train --backward-order queries --fractions "
                "query_gradient=keep:1",
                "sums it in place with --backward-order queries"},
        BadLine{"check --fractions norm2=0,", "'': write"},
        BadLine{"check --fractions norm2=1.5", "'norm2=1.5'"},
        BadLine{"check --fractions norm2=nan", "'norm2=nan'"},
        BadLine{"check --fractions norm2=keep:0.5+", "keep:0.5+"},
        BadLine{"check --fractions norm2=keep:0.5+1",
                "norm2: keep 0.5 and swap 1"},
        BadLine{"check --fractions q=keep:0.5", "q: keep 0.5"},
        BadLine{"check --fractions norm2=0,norm2=1", "twice"},
        BadLine{"check --fractions oops=1", "'oops' is no class"},
        BadLine{"train --arch gpt --fractions ffn_gate=1",
                "'ffn_gate' is no class"},
        BadLine{"train --lr nan", "--lr nan"},
        BadLine{"train --hbm lots", "--hbm 'lots'"},
        BadLine{"train --hbm 40", "names no unit"},
        BadLine{"train --seqlen 1M", "did you mean --seq-len?"},
        BadLine{"tarin", "did you mean train?"},
        BadLine{"train --batch 3 --global-batch 8",
                "--global-batch 8: must be --batch 3 times"},
        BadLine{"train --hbm=-1", "--hbm '-1'"},
        BadLine{"train --method magic", "alst, keep-all, recompute, sluice"},
        BadLine{"train --arch rnn", "gpt, llama"},
        BadLine{"train --dtype fp8", "bf16, fp32"},
        BadLine{"train --dropout 0.1", "--dropout 0.1"},
        BadLine{"train --heads 3 --hidden 128", "heads"},
        BadLine{"train --heads 2 --ranks 4 --method alst", "ranks"},
        BadLine{"train --heads 4 --kv-heads 3", "kv"},
        BadLine{"train --save-every 5", "--save"},
        BadLine{"train --wait -1", "--wait -1"},
        BadLine{"check --wait nan", "--wait nan"},
        BadLine{"train --keep-checkpoints 2", "--save"},
        BadLine{"train --allow-other-data", "--resume"},
        BadLine{"train --private --socket /s", "--private"},
        BadLine{"train --token-bytes 3", "--token-bytes 3"}),
    ::sluice::testing::CaseName());

TEST(PrivateConfig, NamesALinkForEachGpu) {
  RunOptions options;
  options.ranks = 2;
  options.hbm = MiB(36);
  options.host = MiB(384);
  const std::string config = PrivateConfig(options);
  EXPECT_THAT(config, AllOf(HasSubstr("gpus = 2"), HasSubstr("\"pcie1\""),
                            HasSubstr("gpu_memory = \"36MiB\"")));
}

TEST(CommandLine, WatchdogFlagsTakeSecondsAndGpuTakesNumbers) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const ParsedCommand parsed,
      ParseCommandLine(
          Split("train --late-after 45 --end-after 0 --wait 2.5 --gpu 1,3")));
  EXPECT_EQ(parsed.options.late_after, 45);
  EXPECT_EQ(parsed.options.end_after, 0);
  EXPECT_EQ(parsed.options.wait, 2.5);
  EXPECT_EQ(parsed.options.gpus, (std::vector<int64_t>{1, 3}));
  SLUICE_ASSERT_OK_AND_ASSIGN(const ParsedCommand plain,
                              ParseCommandLine(Split("train")));
  EXPECT_LT(plain.options.late_after, 0)
      << "negative: derived from the duration of a step";
  for (const char* flags :
       {"--late-after soon", "--end-after -1", "--late-after nan", "--gpu x"}) {
    const auto refused = ParseCommandLine(Split(std::string("train ") + flags));
    ASSERT_FALSE(refused.ok()) << flags;
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr(Split(flags)[0]));
  }
}

// A streamed step's rings depend on its chunks, not on the sequence length.
TEST(Advice, AShorterSequenceIsAdvisedOnlyWhereItHelps) {
  const auto advice = [](Shortage shortage, std::optional<Method> method) {
    return std::string(WithAdvice(ShortOf(shortage, "x"), method).message());
  };
  const auto shorter = HasSubstr("shorten --seq-len");
  EXPECT_THAT(advice(Shortage::kGpuMemory, Method::kSluice),
              AllOf(Not(shorter), HasSubstr("a smaller --chunk")));
  EXPECT_THAT(advice(Shortage::kHostMemory, Method::kSluice), shorter);
  EXPECT_THAT(advice(Shortage::kHostMemory, Method::kAlst), shorter);
  for (const Method method :
       {Method::kKeepAll, Method::kRecompute, Method::kAlst}) {
    EXPECT_THAT(advice(Shortage::kGpuMemory, method), shorter);
  }
  EXPECT_THAT(advice(Shortage::kHostMemory, Method::kRecompute), Not(shorter));
  // Without a method, as for a lease before training, no length is advised.
  EXPECT_THAT(advice(Shortage::kGpuMemory, std::nullopt), Not(shorter));
  EXPECT_THAT(advice(Shortage::kDisk, Method::kSluice), Not(shorter));
  EXPECT_EQ(ExitCode(WithAdvice(ShortOf(Shortage::kDisk, "x"))), kExitDiskFull);
}

TEST(Outcome, AMissingDaemonIsBadInputUnlessAResourceRanOut) {
  const absl::Status gone = absl::UnavailableError("no daemon");
  EXPECT_EQ(ExitCode(gone), kExitFault);
  EXPECT_EQ(ExitCode(AsBadInput(gone)), kExitBadInput);
  EXPECT_EQ(AsBadInput(gone).message(), "no daemon");
  const absl::Status full = Mark(gone, Shortage::kOpenFiles);
  EXPECT_EQ(AsBadInput(full), full);
  const absl::Status other = absl::InternalError("broken");
  EXPECT_EQ(AsBadInput(other), other);
}

TEST(Outcome, AShortageDecidesTheExitStatusBeforeTheStatusCode) {
  for (const auto& [shortage, code] :
       {std::pair{Shortage::kNone, kExitBadInput},
        {Shortage::kGpuMemory, kExitDoesNotFit},
        {Shortage::kHostMemory, kExitDoesNotFit},
        {Shortage::kDisk, kExitDiskFull},
        {Shortage::kOpenFiles, kExitOpenFiles}}) {
    EXPECT_EQ(ExitCode(Mark(BadInput("x"), shortage)), code);
  }
  EXPECT_EQ(LimitedBy(ShortOf(Shortage::kGpuMemory, "x")), "gpu_memory");
  EXPECT_EQ(LimitedBy(BadInput("x")), "none");
  EXPECT_EQ(ShortageOf(BadInputOfErrno(ENOSPC, "x")), Shortage::kDisk);
  for (const absl::StatusCode code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
        absl::StatusCode::kAlreadyExists, absl::StatusCode::kPermissionDenied,
        absl::StatusCode::kOutOfRange}) {
    EXPECT_EQ(ExitCode(absl::Status(code, "x")), kExitBadInput);
  }
  EXPECT_EQ(ExitCode(absl::InternalError("x")), kExitFault);
  EXPECT_EQ(ExitCode(absl::OkStatus()), kExitOk);
}

TEST(PrivateSizes, MoreThanTheMachineHasIsRefusedWithItsLimit) {
  RunOptions o;
  o.hbm = GiB(100 * 1024);
  const absl::Status refused = CheckPrivateSizes(o, GiB(16));
  EXPECT_EQ(ExitCode(refused), kExitBadInput);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("--hbm 100 TiB"), HasSubstr("16 GiB")));
  o.hbm = GiB(16);
  EXPECT_TRUE(CheckPrivateSizes(o, GiB(16)).ok());
  o.host = GiB(17);
  EXPECT_FALSE(CheckPrivateSizes(o, GiB(16)).ok());
  EXPECT_GT(MachineMemory(), MiB(64));
  EXPECT_LE(MachineMemory().count(),
            int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE));
  const auto limit = CgroupMemoryLimit();
  if (limit.has_value()) {
    EXPECT_LE(MachineMemory(), limit->most);
  }
}

}  // namespace
}  // namespace sluice::train
