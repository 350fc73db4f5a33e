// sluicectl plan train: does a run fit, how fast, and its longest sequence.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "client/ctl/desk/plan_commands.h"
#include "client/ctl/desk/train_words.h"
#include "client/ctl/text/format.h"
#include "client/ctl/text/output.h"
#include "planner/train/published.h"
#include "planner/train/search.h"
#include "planner/train/settings.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/cli/cli.h"

namespace sluice::ctl {
namespace {

using planner::train::BestEstimate;
using planner::train::FindLongest;
using planner::train::GivenSettings;
using planner::train::ModelShape;
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

struct TrainFlags {
  std::string model;
  std::optional<int64_t> layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
  std::string arch;  // gpt, llama; empty: llama with --swiglu, else gpt
  bool swiglu = false;
  std::string hardware;
  int64_t gpus = 0;
  std::optional<int64_t> seq_len;
  std::string method = "sluice";
  std::string engine;  // empty: the better one
  GivenSettings given;
  std::string alpha = "auto";
  std::string recompute;  // empty: the fastest that fits
  // Sequences per step: their total, or the batch and its accumulation.
  std::optional<int64_t> global_batch, batch, accumulate;
  bool max_seq_len = false;
  double max_step_s = std::numeric_limits<double>::infinity();
  bool asks_longest() const { return max_seq_len || std::isfinite(max_step_s); }
  bool compare = false;
  bool json = false;
  std::string html;
};

// Any other word is the name of a preset.
bool IsFile(const std::string& name, const char* ending) {
  std::error_code error;
  return name.find('/') != std::string::npos ||
         std::filesystem::path(name).extension() == ending ||
         std::filesystem::exists(name, error);
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  constexpr size_t kMost = 1 << 20;
  std::error_code error;
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(
        fmt::format("cannot read '{}': name a file", Printable(path)));
  }
  std::string text(kMost + 1, '\0');
  in.read(text.data(), std::streamsize(text.size()));
  text.resize(size_t(in.gcount()));
  if (text.size() > kMost) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is larger than 1 MiB: that is no description of a "
                    "model or machine",
                    Printable(path)));
  }
  return text;
}

absl::StatusOr<ModelShape> ShapeOfFlags(const TrainFlags& flags) {
  if (flags.arch != "" && flags.arch != "gpt" && flags.arch != "llama") {
    return absl::InvalidArgumentError(fmt::format(
        "--arch '{}': must be gpt or llama", Printable(flags.arch)));
  }
  if (flags.arch == "gpt" && flags.swiglu) {
    return absl::InvalidArgumentError(
        "--arch gpt has no --swiglu: give --arch llama, or leave one out");
  }
  const bool llama = flags.swiglu || flags.arch == "llama";
  if (!flags.layers || !flags.hidden || !flags.heads) {
    return absl::InvalidArgumentError(
        "give --model (a name or a config.json), or at least --layers, "
        "--hidden and --heads");
  }
  ModelShape sizes{.name = "given",
                   .layers = *flags.layers,
                   .hidden = *flags.hidden,
                   .heads = *flags.heads,
                   .kv_heads = flags.kv_heads.value_or(*flags.heads),
                   .head_size = flags.head_dim,
                   .ffn = flags.ffn.value_or(4 * *flags.hidden),
                   .vocab = flags.vocab.value_or(50257)};
  const ModelShape model =
      llama ? stream::Llama(std::move(sizes)) : stream::Gpt(std::move(sizes));
  SLUICE_RETURN_IF_ERROR(model.Validate());
  return model;
}

bool AnyShapeFlag(const TrainFlags& f) {
  return f.layers || f.hidden || f.heads || f.kv_heads || f.head_dim || f.ffn ||
         f.vocab || f.swiglu || !f.arch.empty();
}

absl::StatusOr<ModelShape> ModelOf(const TrainFlags& flags,
                                   std::vector<std::string>* notes) {
  if (flags.model.empty()) return ShapeOfFlags(flags);
  if (AnyShapeFlag(flags)) {
    return absl::InvalidArgumentError(fmt::format(
        "--model {} and flags of a shape (--layers, …): give one of them",
        Printable(flags.model)));
  }
  if (!IsFile(flags.model, ".json")) {
    return planner::train::FindModel(Printable(flags.model));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(flags.model));
  return planner::train::ReadHuggingFaceConfig(text, Printable(flags.model),
                                               notes);
}

absl::StatusOr<planner::train::Hardware> HardwareOf(const TrainFlags& flags) {
  if (!IsFile(flags.hardware, ".toml")) {
    return planner::train::FindHardware(Printable(flags.hardware));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile(flags.hardware));
  return planner::train::ReadHardware(text, Printable(flags.hardware));
}

void AddSearched(CLI::App& app, TrainFlags& f) {
  const char* searched = "What is not given is searched";
  const auto add = [&](const char* name, auto& to, const char* help) {
    app.add_option(name, to, help)->group(searched);
  };
  add("--tp", f.given.tp, "tensor parallel degree");
  add("--cp", f.given.cp, "context parallel");
  add("--sp", f.given.sp, "Ulysses degree");
  add("--dp", f.given.dp, "data parallel");
  add("--pp", f.given.pp, "pipeline parallel");
  add("--ep", f.given.ep, "megatron: ranks of a layer's experts");
  add("--interleave", f.given.interleave,
      "megatron: pieces of a pipeline stage");
  add("--recompute", f.recompute, "megatron, ring: none, selective or full");
  add("--zero", f.given.zero, "ZeRO stage, 0 to 3");
  app.add_flag_callback(
         "--no-keep", [&f] { f.given.keep = false; },
         "trainer: nothing that backward needs stays on the GPU")
      ->group(searched);
  add("--alpha", f.alpha, "fraction swapped, 0 to 1, or 'auto'");
  cli::AddCount(app, "--chunk", f.given.chunk, "tokens of a chunk: 64K")
      ->group(searched);
}

void AddShape(CLI::App& app, TrainFlags& f) {
  const char* shape = "A shape, instead of --model";
  app.add_option("--arch", f.arch, "gpt (default) or llama")->group(shape);
  const auto add = [&](const char* name, std::optional<int64_t>& to,
                       const char* help) {
    cli::AddCount(app, name, to, help)->group(shape);
  };
  add("--layers", f.layers, "transformer layers");
  add("--hidden", f.hidden, "width of a hidden state");
  add("--heads", f.heads, "attention heads");
  add("--kv-heads", f.kv_heads, "heads of k and v (default --heads)");
  add("--head-dim", f.head_dim, "width of a head (default hidden / heads)");
  add("--ffn", f.ffn, "inner width of the FFN (default 4 x hidden)");
  add("--vocab", f.vocab, "token ids (default 50257)");
  app.add_flag("--swiglu", f.swiglu, "the same as --arch llama")->group(shape);
}

absl::StatusOr<int64_t> GlobalBatch(const TrainFlags& f) {
  if (!f.batch && !f.accumulate) return f.global_batch.value_or(16);
  const int64_t product = f.batch.value_or(1) * f.accumulate.value_or(1);
  if (f.global_batch.value_or(product) != product) {
    return absl::InvalidArgumentError(fmt::format(
        "--global-batch {} is not --batch {} times --accumulate {}: give one "
        "of them",
        *f.global_batch, f.batch.value_or(1), f.accumulate.value_or(1)));
  }
  return product;
}

void AddTrainFlags(CLI::App& app, TrainFlags& f) {
  app.add_option("--model", f.model,
                 "a Hugging Face config.json, or a shipped shape: " +
                     absl::StrJoin(planner::train::ModelNames(), ", "));
  app.add_option("--hardware", f.hardware,
                 "a TOML file, or a shipped profile: " +
                     absl::StrJoin(planner::train::HardwareNames(), ", "))
      ->required();
  app.add_option("--gpus,--ranks", f.gpus,
                 "GPUs in all, one rank on each; some may stay idle")
      ->required();
  cli::AddCount(app, "--seq-len", f.seq_len, "tokens: 131072, 128K, 1.5M");
  app.add_flag("--max-seq-len", f.max_seq_len,
               "also the longest that fits, in steps of 64K");
  app.add_option("--max-step", f.max_step_s,
                 "the same, with a step of at most so long: 1h, 10min, 90s")
      ->transform(CLI::AsNumberWithUnit(std::map<std::string, double>{
          {"s", 1}, {"min", 60}, {"m", 60}, {"h", 3600}}));
  app.add_option("--method", f.method,
                 absl::StrJoin(planner::train::kMethodTraits, ", ",
                               [](std::string* out, const auto& method) {
                                 out->append(method.name).append(method.what);
                               }) +
                     "; default sluice");
  app.add_option("--engine", f.engine,
                 "of sluice: trainer (sluice-train) or python (sluice.stream() "
                 "under FSDP2); default the better one");
  app.add_flag("--compare", f.compare,
               "also every other method on the same GPUs, and the longest "
               "that fits by each");
  cli::AddCount(app, "--global-batch", f.global_batch,
                "sequences per step (default 16)");
  cli::AddCount(app, "--batch", f.batch,
                "the same as sequences per micro-batch, times --accumulate");
  cli::AddCount(app, "--accumulate", f.accumulate, "micro-batches per step");
  AddSearched(app, f);
  AddShape(app, f);
  app.add_flag("--json", f.json, "print one JSON object");
  app.add_option("--html", f.html, "write a page with pictures there");
}

absl::StatusOr<Request> TrainRequest(const TrainFlags& flags) {
  Request request;
  SLUICE_ASSIGN_OR_RETURN(request.model, ModelOf(flags, &request.model_notes));
  SLUICE_ASSIGN_OR_RETURN(request.hardware, HardwareOf(flags));
  SLUICE_ASSIGN_OR_RETURN(request.method,
                          planner::train::FindMethod(Printable(flags.method)));
  request.gpus = flags.gpus;
  SLUICE_ASSIGN_OR_RETURN(request.global_batch, GlobalBatch(flags));
  if (!(flags.max_step_s > 0)) {
    return absl::InvalidArgumentError(fmt::format(
        "--max-step is {} s; it must be above 0", flags.max_step_s));
  }
  if (!flags.seq_len && !flags.asks_longest()) {
    return absl::InvalidArgumentError(
        "give --seq-len (tokens, e.g. 1M), or --max-seq-len to look for it");
  }
  request.seq_len = flags.seq_len.value_or(0);
  if (flags.seq_len && request.seq_len < 1) {
    return absl::InvalidArgumentError(
        fmt::format("--seq-len is {}; it must be at least 1", request.seq_len));
  }
  return request;
}

absl::StatusOr<GivenSettings> TrainSettings(const TrainFlags& flags) {
  GivenSettings given = flags.given;
  if (!flags.engine.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        given.engine, planner::train::FindEngine(Printable(flags.engine)));
  }
  if (!flags.recompute.empty()) {
    SLUICE_ASSIGN_OR_RETURN(given.recompute, planner::train::FindRecompute(
                                                 Printable(flags.recompute)));
  }
  if (flags.alpha != "auto") {
    double alpha = 0;
    if (!CLI::detail::lexical_cast(flags.alpha, alpha)) {
      return absl::InvalidArgumentError(
          fmt::format("--alpha '{}': must be between 0 and 1, or 'auto'",
                      Printable(flags.alpha)));
    }
    given.alpha = alpha;
  }
  return given;
}

absl::StatusOr<MethodAnswer> AnswerMethod(const Request& request,
                                          const GivenSettings& given,
                                          double max_step_s) {
  MethodAnswer answer = {.request = request};
  SLUICE_ASSIGN_OR_RETURN(answer.estimate, BestEstimate(request, given));
  SLUICE_ASSIGN_OR_RETURN(answer.longest,
                          FindLongest(request, given, max_step_s));
  return answer;
}

// Lengths up to the longest sequence; no points if none fits.
absl::StatusOr<MfuCurve> CurveOf(Request request, const GivenSettings& given) {
  MfuCurve curve = {
      .method = request.method,
      .validated = !planner::train::EvidenceOf(request).speed.empty()};
  SLUICE_ASSIGN_OR_RETURN(const auto longest, FindLongest(request, given));
  if (longest.tokens == 0) return curve;
  constexpr double kSteps = 4;  // points per doubling
  const double most = std::log2(double(longest.tokens));
  for (double power = 14; power < most; power += 1 / kSteps) {
    request.seq_len = int64_t(std::exp2(power));
    SLUICE_ASSIGN_OR_RETURN(const auto estimate, BestEstimate(request, given));
    if (estimate.fits) {
      curve.points.emplace_back(request.seq_len, estimate.mfu);
    }
  }
  curve.points.emplace_back(longest.tokens, longest.at.mfu);
  return curve;
}

// Collects answer(request, given) of each method, in the order of kMethods. The
// given settings are for the requested method; those of others are searched. A
// method that cannot use these GPUs is left out; if it is the requested one,
// this is an error.
template <typename Answer>
absl::Status AskEveryMethod(const Request& asked, const GivenSettings& given,
                            auto answer, std::vector<Answer>& answers) {
  for (const auto method : planner::train::kMethods) {
    Request request = asked;
    request.method = method;
    const bool is_asked = method == asked.method;
    absl::StatusOr<Answer> one =
        answer(request, is_asked ? given : GivenSettings());
    if (is_asked) SLUICE_RETURN_IF_ERROR(one.status());
    if (one.ok()) answers.push_back(*std::move(one));
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainAnswer> AnswerTrain(const TrainFlags& flags) {
  TrainAnswer answer;
  SLUICE_ASSIGN_OR_RETURN(answer.request, TrainRequest(flags));
  SLUICE_ASSIGN_OR_RETURN(const auto given, TrainSettings(flags));
  if (flags.asks_longest()) {
    SLUICE_ASSIGN_OR_RETURN(
        answer.longest, FindLongest(answer.request, given, flags.max_step_s));
    if (answer.request.seq_len == 0) {
      answer.request.seq_len =
          std::max(answer.longest->tokens, planner::train::kLengthStep);
    }
  }
  SLUICE_ASSIGN_OR_RETURN(answer.estimate, BestEstimate(answer.request, given));
  if (flags.compare) {
    const auto ask = [&](const Request& request,
                         const GivenSettings& settings) {
      return AnswerMethod(request, settings, flags.max_step_s);
    };
    SLUICE_RETURN_IF_ERROR(
        AskEveryMethod(answer.request, given, ask, answer.methods));
  }
  SLUICE_ASSIGN_OR_RETURN(answer.remedies,
                          planner::train::FindRemedies(answer.request, given));
  // --batch or --accumulate would contradict another --global-batch.
  std::vector<std::string> batch;
  if (flags.batch) batch.emplace_back("--batch");
  if (flags.accumulate) batch.emplace_back("--accumulate");
  for (auto& remedy : answer.remedies) {
    if (remedy.flag == "--global-batch") remedy.without = batch;
  }
  answer.batch_source = !batch.empty()       ? absl::StrJoin(batch, " times ")
                        : flags.global_batch ? "--global-batch"
                                             : "the default of --global-batch";
  answer.idle = planner::train::WhyIdle(answer.request, given, answer.estimate);
  if (!flags.html.empty()) {
    SLUICE_RETURN_IF_ERROR(
        AskEveryMethod(answer.request, given, CurveOf, answer.curves));
  }
  return answer;
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
    SLUICE_RETURN_IF_ERROR(WriteOutput(flags.html, TrainPage(answer)));
  }
  fmt::print(flags.html == "-" ? stderr : stdout, "{}",
             flags.json ? TrainJson(answer) : TrainWords(answer));
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
