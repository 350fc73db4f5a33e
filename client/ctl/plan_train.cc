// sluicectl plan train: does it fit, how fast, with what settings, and where
// is the wall?
#include <fmt/format.h>

#include <memory>

#include "client/ctl/output.h"
#include "client/ctl/plan_commands.h"
#include "client/ctl/train_flags.h"
#include "client/ctl/train_words.h"
#include "proto/base/status.h"

namespace sluice::ctl {
namespace {

constexpr const char* kExamples = R"(Examples:
  sluicectl plan train --model llama-8b --hardware h100-80g --gpus 8 --seq-len 1M
  sluicectl plan train --model gpt-7b --hardware a800-80g --gpus 8 \
      --method memo --max-seq-len
  sluicectl plan train --model ./config.json --hardware ./node.toml --gpus 16 \
      --seq-len 512K --method megatron --tp 8 --json

Sizes of sequences: K = 1,024, M = 1,048,576. Exit status: 0 it fits; 2 bad
input; 3 it does not fit (the answer is printed all the same); 1 a fault.)";

absl::StatusOr<TrainAnswer> Ask(const TrainFlags& flags) {
  TrainAnswer answer;
  SLUICE_ASSIGN_OR_RETURN(answer.request, TrainRequest(flags));
  SLUICE_ASSIGN_OR_RETURN(const auto given, TrainSettings(flags));
  if (flags.max_seq_len) {
    SLUICE_ASSIGN_OR_RETURN(answer.longest,
                            planner::train::FindLongest(answer.request, given));
    if (answer.request.seq_len == 0) {
      answer.request.seq_len =
          std::max(answer.longest->tokens, planner::train::kLengthStep);
    }
  }
  SLUICE_ASSIGN_OR_RETURN(answer.estimate,
                          planner::train::BestEstimate(answer.request, given));
  return answer;
}

int Run(const TrainFlags& flags) {
  const absl::StatusOr<TrainAnswer> answer = Ask(flags);
  if (!answer.ok()) return ReportError(answer.status());
  fmt::print("{}", flags.json ? TrainJson(*answer) : TrainWords(*answer));
  return answer->estimate.fits ? 0 : kDoesNotFit;
}

}  // namespace

DeskCommand AddPlanTrain(CLI::App& plan) {
  CLI::App* app = plan.add_subcommand(
      "train", "fits? how fast? the longest sequence? by a cost model");
  auto flags = std::make_shared<TrainFlags>();
  AddTrainFlags(*app, *flags);
  app->footer(kExamples);
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace sluice::ctl
