// sluicectl plan train: does a run fit, how fast, and its longest sequence.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "client/ctl/desk/plan_commands.h"
#include "client/ctl/desk/train_flags.h"
#include "client/ctl/desk/train_words.h"
#include "client/ctl/text/output.h"
#include "planner/train/published.h"
#include "proto/base/status.h"

namespace sluice::ctl {
namespace {

using planner::train::GivenSettings;
using planner::train::Request;

constexpr const char* kTrainExamples = R"(Examples:
  sluicectl plan train --model llama-8b --hardware h100-80g --gpus 8 --seq-len 1M
  sluicectl plan train --model llama-8b --hardware h100-80g --gpus 8 \
      --seq-len 256K --compare
  sluicectl plan train --model gpt-7b --hardware a800-80g --gpus 8 \
      --method memo --max-seq-len
  sluicectl plan train --model llama-8b --hardware h100-80g --gpus 8 \
      --global-batch 1 --max-step 1h --engine python
  sluicectl plan train --model ./config.json --hardware ./node.toml --gpus 16 \
      --seq-len 512K --method megatron --tp 8 --json

Sizes of sequences: K = 1,024, M = 1,048,576. Exit status: 0 it fits; 2 bad
input; 3 it does not fit (the answer is printed all the same); 1 a fault.)";

absl::StatusOr<MethodAnswer> AnswerMethod(const Request& request,
                                          const GivenSettings& given,
                                          double max_step_s) {
  MethodAnswer answer;
  answer.request = request;
  SLUICE_ASSIGN_OR_RETURN(answer.estimate,
                          planner::train::BestEstimate(request, given));
  SLUICE_ASSIGN_OR_RETURN(
      answer.longest, planner::train::FindLongest(request, given, max_step_s));
  return answer;
}

// Returns the answers in the order of kMethods. The given settings are for the
// requested method; those of others are searched. A method that cannot use
// these GPUs is left out; if it is the requested one, this is an error.
absl::StatusOr<std::vector<MethodAnswer>> AnswerEveryMethod(
    const Request& asked, const GivenSettings& given, double max_step_s) {
  std::vector<MethodAnswer> methods;
  for (const auto method : planner::train::kMethods) {
    Request request = asked;
    request.method = method;
    const bool is_asked = method == asked.method;
    auto answer =
        AnswerMethod(request, is_asked ? given : GivenSettings(), max_step_s);
    if (is_asked && !answer.ok()) return answer.status();
    if (answer.ok()) methods.push_back(*std::move(answer));
  }
  return methods;
}

absl::StatusOr<TrainAnswer> AnswerTrain(const TrainFlags& flags) {
  TrainAnswer answer;
  SLUICE_ASSIGN_OR_RETURN(answer.request, TrainRequest(flags));
  SLUICE_ASSIGN_OR_RETURN(const auto given, TrainSettings(flags));
  if (flags.asks_longest()) {
    SLUICE_ASSIGN_OR_RETURN(
        answer.longest,
        planner::train::FindLongest(answer.request, given, flags.max_step_s));
    if (answer.request.seq_len == 0) {
      answer.request.seq_len =
          std::max(answer.longest->tokens, planner::train::kLengthStep);
    }
  }
  SLUICE_ASSIGN_OR_RETURN(answer.estimate,
                          planner::train::BestEstimate(answer.request, given));
  if (flags.compare) {
    SLUICE_ASSIGN_OR_RETURN(
        answer.methods,
        AnswerEveryMethod(answer.request, given, flags.max_step_s));
  }
  SLUICE_ASSIGN_OR_RETURN(answer.remedies,
                          planner::train::FindRemedies(answer.request, given));
  // --batch or --accumulate would contradict another --global-batch.
  const std::vector<std::string> batch = flags.batch_flags();
  for (auto& remedy : answer.remedies) {
    if (remedy.flag == "--global-batch") remedy.without = batch;
  }
  answer.batch_source = !batch.empty()       ? absl::StrJoin(batch, " times ")
                        : flags.global_batch ? "--global-batch"
                                             : "the default of --global-batch";
  answer.idle = planner::train::WhyIdle(answer.request, given, answer.estimate);
  return answer;
}

// Lengths up to the longest sequence; no points if none fits.
absl::StatusOr<MfuCurve> CurveOf(Request request, const GivenSettings& given) {
  MfuCurve curve;
  curve.method = planner::train::MethodName(request.method);
  curve.validated = !planner::train::EvidenceOf(request).speed.empty();
  SLUICE_ASSIGN_OR_RETURN(const auto longest,
                          planner::train::FindLongest(request, given));
  constexpr double kSteps = 4;  // points per doubling
  const double most = std::log2(double(longest.tokens));
  for (double power = 14; longest.tokens > 0 && power < most;
       power += 1 / kSteps) {
    request.seq_len = int64_t(std::exp2(power));
    SLUICE_ASSIGN_OR_RETURN(const auto estimate,
                            planner::train::BestEstimate(request, given));
    if (estimate.fits) {
      curve.points.emplace_back(request.seq_len, estimate.mfu);
    }
  }
  if (longest.tokens > 0) {
    curve.points.emplace_back(longest.tokens, longest.at.mfu);
  }
  return curve;
}

absl::StatusOr<std::vector<MfuCurve>> Curves(Request request,
                                             const GivenSettings& given) {
  std::vector<MfuCurve> curves;
  const planner::train::Method chosen = request.method;
  for (const auto method : planner::train::kMethods) {
    request.method = method;
    auto curve = CurveOf(request, method == chosen ? given : GivenSettings());
    if (method == chosen && !curve.ok()) return curve.status();
    if (!curve.ok()) continue;  // the method cannot use these GPUs
    curve->chosen = method == chosen;
    curves.push_back(*std::move(curve));
  }
  return curves;
}

absl::StatusOr<int> RunTrain(const TrainFlags& flags) {
  // Checked before the search, which may take a second.
  if (!flags.html.empty()) SLUICE_RETURN_IF_ERROR(CheckOutput(flags.html));
  if (flags.html == "-" && flags.json) {
    return absl::InvalidArgumentError(
        "standard output can hold one of --json and --html -: name a file");
  }
  SLUICE_ASSIGN_OR_RETURN(const TrainAnswer answer, AnswerTrain(flags));
  if (!flags.html.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const auto given, TrainSettings(flags));
    SLUICE_ASSIGN_OR_RETURN(const auto curves, Curves(answer.request, given));
    SLUICE_RETURN_IF_ERROR(WriteOutput(flags.html, TrainPage(answer, curves)));
  }
  fmt::print(
      flags.html == "-" ? stderr : stdout, "{}",
      flags.json ? TrainObject(answer).dump() + "\n" : TrainWords(answer));
  const bool no_length =
      !flags.seq_len && answer.longest && answer.longest->tokens == 0;
  return answer.estimate.fits && !no_length ? 0 : kDoesNotFit;
}

}  // namespace

DeskCommand AddPlanTrain(CLI::App& plan) {
  CLI::App* app = plan.add_subcommand(
      "train", "fits? how fast? the longest sequence? by a cost model");
  auto flags = std::make_shared<TrainFlags>();
  AddTrainFlags(*app, *flags);
  app->footer(kTrainExamples);
  return {app, [flags] { return ExitStatus(RunTrain(*flags)); }};
}

}  // namespace sluice::ctl
