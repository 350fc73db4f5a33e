// sluicectl plan train: does a run fit, how fast, and its longest sequence.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/ctl/desk/plan_commands.h"
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

using Json =
    nlohmann::ordered_json;  // keeps the order of keys, as the page needs
using planner::train::BestEstimate;
using planner::train::Engine;
using planner::train::Estimate;
using planner::train::Evidence;
using planner::train::EvidenceOf;
using planner::train::FindLongest;
using planner::train::GivenSettings;
using planner::train::Method;
using planner::train::MethodName;
using planner::train::ModelShape;
using planner::train::PassTimes;
using planner::train::Reason;
using planner::train::Request;
using planner::train::Settings;
using planner::train::TokensText;
using planner::train::TraitsOf;

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
  std::string engine;  // empty: the better engine
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

// Returns whether `name` names a file; else it names a preset.
bool IsFile(const std::string& name, const char* ending) {
  std::error_code error;
  const auto status = std::filesystem::status(name, error);
  // A folder may have a preset's name, for example that of a downloaded model.
  return name.find('/') != std::string::npos ||
         std::filesystem::path(name).extension() == ending ||
         (exists(status) && !is_directory(status));
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

absl::StatusOr<int64_t> GlobalBatch(const TrainFlags& f) {
  if (!f.batch && !f.accumulate) return f.global_batch.value_or(16);
  constexpr int64_t kMost = 1 << 20;
  const std::pair<const char*, int64_t> factors[] = {
      {"--batch", f.batch.value_or(1)},
      {"--accumulate", f.accumulate.value_or(1)}};
  for (const auto& [flag, value] : factors) {
    if (value >= 1 && value <= kMost) continue;
    return absl::InvalidArgumentError(
        fmt::format("{} is {}; it must be 1 to {}", flag, value, kMost));
  }
  const int64_t product = factors[0].second * factors[1].second;
  const int64_t all = f.global_batch.value_or(product);
  // If only one factor is given, the other one follows.
  const bool both = f.batch && f.accumulate;
  if (both ? all == product : all % product == 0) return all;
  return absl::InvalidArgumentError(fmt::format(
      "--global-batch {} is not --batch {} times --accumulate {}: give one "
      "of them",
      all, f.batch ? fmt::format("{}", *f.batch) : "N",
      f.accumulate ? fmt::format("{}", *f.accumulate) : "N"));
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
               "also find the longest sequence that fits, in steps of 64K");
  app.add_option(
         "--max-step", f.max_step_s,
         "like --max-seq-len, for steps up to this time: 1h, 10min, 90s")
      ->transform(CLI::AsNumberWithUnit(std::map<std::string, double>{
          {"s", 1}, {"min", 60}, {"m", 60}, {"h", 3600}}));
  app.add_option("--method", f.method,
                 absl::StrJoin(planner::train::kMethodTraits, ", ",
                               [](std::string* out, const auto& method) {
                                 out->append(method.name).append(method.what);
                               }) +
                     "; default sluice");
  app.add_option(
      "--engine", f.engine,
      "with sluice: trainer (sluice-train) or python (sluice.stream() "
      "under FSDP2); default the better one");
  app.add_flag("--compare", f.compare,
               "also every other method on the same GPUs, and the longest "
               "that fits by each");
  cli::AddCount(app, "--global-batch", f.global_batch,
                "sequences per step (default 16)");
  cli::AddCount(app, "--batch", f.batch,
                "sequences per micro-batch (--global-batch / --accumulate)");
  cli::AddCount(app, "--accumulate", f.accumulate, "micro-batches per step");

  const char* searched = "What is not given is searched";
  const auto add = [&](const char* name, auto& to, const char* help) {
    app.add_option(name, to, help)->group(searched);
  };
  add("--tp", f.given.tp, "tensor parallel degree");
  add("--cp", f.given.cp, "context parallel");
  add("--sp", f.given.sp, "Ulysses degree");
  add("--dp", f.given.dp, "data parallel");
  add("--pp", f.given.pp, "pipeline parallel");
  add("--ep", f.given.ep, "expert parallel degree (megatron)");
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

  const char* shape = "A shape, instead of --model";
  app.add_option("--arch", f.arch, "gpt (default) or llama")->group(shape);
  const auto add_size = [&](const char* name, std::optional<int64_t>& to,
                            const char* help) {
    cli::AddCount(app, name, to, help)->group(shape);
  };
  add_size("--layers", f.layers, "transformer layers");
  add_size("--hidden", f.hidden, "width of a hidden state");
  add_size("--heads", f.heads, "attention heads");
  add_size("--kv-heads", f.kv_heads, "heads of k and v (default --heads)");
  add_size("--head-dim", f.head_dim,
           "width of a head (default hidden / heads)");
  add_size("--ffn", f.ffn, "inner width of the FFN (default 4 x hidden)");
  add_size("--vocab", f.vocab, "token ids (default 50257)");
  app.add_flag("--swiglu", f.swiglu, "the same as --arch llama")->group(shape);

  app.add_flag("--json", f.json, "print one JSON object");
  app.add_option("--html", f.html,
                 "write an HTML page with pictures to this file");
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

// ---- The answer ----

struct TrainAnswer {
  Request request;
  Estimate estimate;
  std::optional<planner::train::LongestSequence> longest;
  // Single changes that would make the run fit, the smallest first.
  std::vector<planner::train::Remedy> remedies;
  planner::train::IdleGpus idle;
  std::string batch_source;  // the flags that state the sequences per step
  // Pairs of tokens and MFU (a fraction) with the best settings.
  std::vector<std::pair<int64_t, double>> curve;
  // One answer per method, including the requested method. With --compare,
  // `methods` has requests, estimates and longest sequences. With --html,
  // `curves` has requests and curves.
  std::vector<TrainAnswer> methods, curves;
};

// Estimates MFU at lengths up to the longest that fits; no points if none fits.
absl::StatusOr<TrainAnswer> CurveOf(Request request,
                                    const GivenSettings& given) {
  TrainAnswer answer = {.request = request};
  SLUICE_ASSIGN_OR_RETURN(const auto longest, FindLongest(request, given));
  if (longest.tokens == 0) return answer;
  constexpr double kSteps = 4;  // points per doubling
  const double most = std::log2(double(longest.tokens));
  for (double power = 14; power < most; power += 1 / kSteps) {
    request.seq_len = int64_t(std::exp2(power));
    SLUICE_ASSIGN_OR_RETURN(const auto estimate, BestEstimate(request, given));
    if (estimate.fits) {
      answer.curve.emplace_back(request.seq_len, estimate.mfu);
    }
  }
  answer.curve.emplace_back(longest.tokens, longest.at.mfu);
  return answer;
}

// Collects answer(request, given) of each method, in the order of kMethods. The
// given settings are for the requested method; the settings of all other
// methods are searched. A method that cannot use these GPUs is left out, or an
// error if it is the requested method.
absl::StatusOr<std::vector<TrainAnswer>> AskEveryMethod(
    const Request& asked, const GivenSettings& given, auto answer) {
  std::vector<TrainAnswer> answers;
  for (const auto method : planner::train::kMethods) {
    Request request = asked;
    request.method = method;
    const bool is_asked = method == asked.method;
    absl::StatusOr<TrainAnswer> one =
        answer(request, is_asked ? given : GivenSettings());
    if (is_asked) SLUICE_RETURN_IF_ERROR(one.status());
    if (one.ok()) answers.push_back(*std::move(one));
  }
  return answers;
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
    const auto ask =
        [&](const Request& request,
            const GivenSettings& settings) -> absl::StatusOr<TrainAnswer> {
      TrainAnswer one = {.request = request};
      SLUICE_ASSIGN_OR_RETURN(one.estimate, BestEstimate(request, settings));
      SLUICE_ASSIGN_OR_RETURN(one.longest,
                              FindLongest(request, settings, flags.max_step_s));
      return one;
    };
    SLUICE_ASSIGN_OR_RETURN(answer.methods,
                            AskEveryMethod(answer.request, given, ask));
  }
  SLUICE_ASSIGN_OR_RETURN(answer.remedies,
                          planner::train::FindRemedies(answer.request, given));
  // A remedy with another --global-batch must drop --batch and --accumulate.
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
    SLUICE_ASSIGN_OR_RETURN(answer.curves,
                            AskEveryMethod(answer.request, given, CurveOf));
  }
  return answer;
}

// ---- The answer in words, as JSON and as a page ----

Json OrNull(bool there, const auto& value) {
  return there ? Json(value) : nullptr;
}

std::string Sized(double bytes) { return Size(int64_t(bytes)); }

// Returns whether alpha applies; sluice's engine python has no alpha.
bool Swapped(Method method, const Settings& settings) {
  return TraitsOf(method).alpha && settings.engine == Engine::kTrainer;
}

// Parts of a step's seconds or of a GPU's bytes, also those that are 0.
using NamedParts = std::vector<std::pair<const char*, double>>;

NamedParts StepParts(const planner::train::Breakdown& b) {
  return {{"attention", b.attention},
          {"matmul", b.matmul},
          {"elementwise", b.elementwise},
          {"recompute", b.recompute},
          {"exposed_copy", b.exposed_copy},
          {"exposed_network", b.exposed_network},
          {"gradient_sync", b.gradient_sync},
          {"reorganisation", b.reorganisation},
          {"pipeline_bubble", b.pipeline_bubble},
          {"optimizer", b.optimizer}};
}

NamedParts MemoryParts(const planner::train::GpuMemory& m) {
  return {{"states", m.states},
          {"skeletal", m.skeletal},
          {"transient", m.transient},
          {"logits", m.logits},
          {"buffers", m.buffers}};
}

// Returns whether memory is known. It is not if heads do not divide by ranks.
bool HasMemory(const Estimate& estimate) {
  return estimate.reason != Reason::kHeads;
}

std::string PartsTable(const NamedParts& parts, double whole, bool bytes) {
  Table table({"", ">", ""});
  for (const auto& [name, value] : parts) {
    if (value <= 0) continue;
    table.Add({fmt::format("  {}", name),
               bytes ? Sized(value) : fmt::format("{:.2f} s", value),
               Bar(value, whole)});
  }
  const std::string text = table.Text();
  return text.substr(text.find('\n') + 1);  // without the empty titles
}

// Formats "not validated: no published table has sluice on h100-80g".
std::string EvidenceText(const Request& request, const std::string& table) {
  if (!table.empty()) return "validated on " + table;
  return fmt::format("not validated: no published table has {} on {}",
                     MethodName(request.method), request.hardware.name);
}

std::string SpeedEvidence(const Request& request) {
  return EvidenceText(request, EvidenceOf(request).speed);
}

std::string MemoryEvidence(const Request& request) {
  return EvidenceText(request, EvidenceOf(request).memory);
}

std::string Row(const char* name, const std::string& value) {
  return fmt::format("  {:<12}{}\n", name, value);
}

std::string RemedyWords(const TrainAnswer& answer) {
  if (answer.estimate.fits) return "";
  if (answer.remedies.empty()) {
    return Row("would fit",
               "with no single change: other settings, methods, lengths, and "
               "more GPUs, up to 64 times as many, were tried");
  }
  std::string text;
  for (const auto& remedy : answer.remedies) {
    text += Row(text.empty() ? "would fit" : "or", remedy.Text());
  }
  return text;
}

std::string IdleText(const TrainAnswer& answer) {
  const auto& idle = answer.idle;
  const Request& request = answer.request;
  const std::string text =
      fmt::format("{} of {} GPUs stay idle: ", idle.gpus, request.gpus);
  if (!idle.by_heads) return text + "with all of them the run is not faster";
  return text +
         fmt::format(
             "no number of ranks that the search tries for {} attention heads "
             "uses all GPUs for {} sequences per step ({}){}",
             request.model.heads, request.global_batch, answer.batch_source,
             idle.batch ? fmt::format("; --global-batch {} does", *idle.batch)
                        : "");
}

Json SettingsJson(const Request& request, const Settings& s) {
  const Method method = request.method;
  Json json = {{"method", MethodName(method)},
               {"seq_len", request.seq_len},
               {"gpus", request.gpus},
               {"global_batch", request.global_batch},
               {"tp", s.tp},
               {"cp", s.cp},
               {"sp", s.sp},
               {"dp", s.dp},
               {"pp", s.pp},
               {"zero", s.zero}};
  json["alpha"] = OrNull(Swapped(method, s), s.alpha);
  json["chunk"] = OrNull(TraitsOf(method).chunk, s.chunk);
  if (method == Method::kSluice) {
    json["engine"] = planner::train::EngineName(s.engine);
  }
  if (const int64_t parts = RowParts(request, s); parts > 1) {
    json["row_parts"] = parts;
  }
  if (TraitsOf(method).recompute) {
    json["recompute"] = planner::train::RecomputeName(s.recompute);
  }
  if (s.interleave > 1) json["interleave"] = s.interleave;
  if (s.ep > 1) json["ep"] = s.ep;
  if (s.gpus() < request.gpus) json["idle_gpus"] = request.gpus - s.gpus();
  if (s.resident) json["resident"] = true;
  if (s.kept > 0) json["kept"] = s.kept;
  if (s.rerun_chunks > 0) {
    json["rerun"] = s.rerun_part(request.seq_len);
    json["rerun_layers"] = s.rerun_layers;
  }
  if (s.states == stream::StatePlace::kHost) {
    json["optimizer_states"] = stream::Name(s.states);
  }
  return json;
}

// Formats "TP 4, CP 2, ZeRO 1, alpha 0.5", without degrees of 1, and how many
// GPUs are idle.
std::string SettingsText(const Request& request, const Settings& s) {
  std::string text;
  const auto add = [&](const std::string& word) {
    text += (text.empty() ? "" : ", ") + word;
  };
  if (request.method == Method::kSluice) {
    add(fmt::format("engine {}", planner::train::EngineName(s.engine)));
  }
  const std::pair<const char*, int64_t> degrees[] = {
      {"TP", s.tp}, {"CP", s.cp}, {"SP", s.sp},
      {"DP", s.dp}, {"PP", s.pp}, {"EP", s.ep}};
  for (const auto& [name, degree] : degrees) {
    if (degree > 1) add(fmt::format("{} {}", name, degree));
  }
  if (const int64_t parts = RowParts(request, s); parts > 1) {
    add(fmt::format("rows of queries in {} parts", parts));
  }
  add(fmt::format("ZeRO {}", s.zero));
  if (s.interleave > 1) add(fmt::format("interleaved {}", s.interleave));
  if (TraitsOf(request.method).recompute) {
    add(fmt::format("recompute {}",
                    planner::train::RecomputeName(s.recompute)));
  }
  if (s.states == stream::StatePlace::kHost) {
    add("optimizer states in host memory");
  }
  if (s.resident) {
    add("everything kept on the GPU");
  } else if (Swapped(request.method, s)) {
    add(fmt::format("alpha {:.4g}", s.alpha));
  }
  if (TraitsOf(request.method).chunk) add("chunk " + TokensText(s.chunk));
  if (s.kept > 0) add(fmt::format("last {:.0f} % kept", 100 * s.kept));
  if (s.rerun_chunks > 0) {
    add(fmt::format("first {:.0f} % run again by {} layers",
                    100 * s.rerun_part(request.seq_len), s.rerun_layers));
  }
  if (s.gpus() < request.gpus) {
    add(fmt::format("{} of {} GPUs idle", request.gpus - s.gpus(),
                    request.gpus));
  }
  return text;
}

std::string LongestWords(const TrainAnswer& answer) {
  const auto& longest = *answer.longest;
  if (longest.tokens == 0) {
    return Row("longest", fmt::format("not even {} tokens: stopped by {}",
                                      TokensText(planner::train::kLengthStep),
                                      ReasonName(longest.stopped_by)));
  }
  return Row(
      "longest",
      fmt::format("{} tokens, {} a step; stopped by {} ({})",
                  TokensText(longest.tokens), Span(longest.at.step_s),
                  longest.stopped_by == Reason::kOk
                      ? "nothing up to " + TokensText(planner::train::kLongest)
                      : std::string(ReasonName(longest.stopped_by)),
                  MemoryEvidence(answer.request)));
}

std::string Validated(const Evidence& evidence) {
  if (!evidence.speed.empty()) return "validated on " + evidence.speed;
  if (!evidence.memory.empty()) return "memory validated on " + evidence.memory;
  return "not validated";
}

std::string MethodsTable(const std::vector<TrainAnswer>& methods) {
  Table table({"  METHOD", ">MFU", ">TOKENS/S PER GPU", ">MEMORY PER GPU",
               ">LONGEST", ">ITS STEP", "SETTINGS", "FIGURES"});
  for (const TrainAnswer& each : methods) {
    const Estimate& e = each.estimate;
    const bool memory = HasMemory(e);
    table.Add(
        {fmt::format("  {}", MethodName(each.request.method)),
         e.fits ? fmt::format("{:.2f} %", 100 * e.mfu) : "does not fit",
         e.fits ? Count(e.tokens_per_gpu_per_s) : "-",
         memory ? Sized(e.gpu_peak_bytes) : "-",
         each.longest->tokens > 0 ? TokensText(each.longest->tokens) : "none",
         each.longest->tokens > 0 ? Span(each.longest->at.step_s) : "-",
         memory ? SettingsText(each.request, e.settings) : "-",
         Validated(EvidenceOf(each.request))});
  }
  return table.Text();
}

// These write the same keys for the requested and for every compared method.
void AddSpeed(Json& json, const Estimate& estimate) {
  json["fits"] = estimate.fits;
  json["reason"] = ReasonName(estimate.reason);
  json["mfu"] = OrNull(estimate.fits, estimate.mfu);
  json["tokens_per_gpu_per_s"] =
      OrNull(estimate.fits, estimate.tokens_per_gpu_per_s);
}
void AddPeak(Json& json, const Estimate& estimate) {
  json["gpu_peak_bytes"] =
      OrNull(HasMemory(estimate), int64_t(estimate.gpu_peak_bytes));
}
void AddLongest(Json& json, const planner::train::LongestSequence& longest) {
  json["max_seq_len"] = longest.tokens;
  json["max_seq_len_step_s"] = OrNull(longest.tokens > 0, longest.at.step_s);
  json["stopped_by"] = ReasonName(longest.stopped_by);
}
void AddEvidence(Json& json, const Request& request) {
  const Evidence evidence = EvidenceOf(request);
  json["speed_validated_on"] = OrNull(!evidence.speed.empty(), evidence.speed);
  json["memory_validated_on"] =
      OrNull(!evidence.memory.empty(), evidence.memory);
}

Json MethodsJson(const std::vector<TrainAnswer>& methods) {
  auto all = Json::array();
  for (const TrainAnswer& each : methods) {
    const Estimate& e = each.estimate;
    Json one = {{"method", MethodName(each.request.method)}};
    AddSpeed(one, e);
    AddPeak(one, e);
    AddLongest(one, *each.longest);
    one["settings"] =
        OrNull(HasMemory(e), SettingsJson(each.request, e.settings));
    AddEvidence(one, each.request);
    all.push_back(std::move(one));
  }
  return all;
}

// Formats "does not fit: needs 91 GiB of a GPU, 72 GiB are usable".
std::string ReasonText(const TrainAnswer& answer) {
  const Estimate& estimate = answer.estimate;
  const Request& request = answer.request;
  switch (estimate.reason) {
    case Reason::kOk:
    case Reason::kStep:
      return "fits";
    case Reason::kGpuMemory:
      return fmt::format("does not fit: needs {} of a GPU, {} are usable",
                         Sized(estimate.gpu_peak_bytes),
                         Sized(estimate.gpu_usable_bytes));
    case Reason::kHostMemory:
      return fmt::format(
          "does not fit: needs {} of a node's host memory, {} are usable",
          Sized(estimate.host_bytes_per_node),
          Sized(estimate.host_usable_bytes));
    case Reason::kHeads:
      break;
  }
  return fmt::format(
      "does not fit: the {} attention heads do not divide by the ranks",
      request.model.heads);
}

// Returns the notes below the figures, one sentence each.
std::vector<std::string> NotesOf(const TrainAnswer& answer) {
  const Request& request = answer.request;
  std::vector<std::string> notes = request.model_notes;
  const int64_t positions = request.model.max_positions;
  const int64_t tokens = std::max(
      request.seq_len, answer.longest ? answer.longest->tokens : int64_t{0});
  if (positions > 0 && tokens > positions) {
    notes.push_back(fmt::format(
        "the model has {} learned positions, so its table must be made longer "
        "for {} tokens; the longer table is not counted",
        Count(positions), TokensText(tokens)));
  }
  const Settings& settings = answer.estimate.settings;
  const bool memory = HasMemory(answer.estimate);
  if (memory && request.method == Method::kSluice &&
      settings.engine == Engine::kPython && settings.sp > 1) {
    notes.push_back(
        "engine python: ranks that share a sequence (stream(group=...)) have "
        "run on CPUs alone; on a GPU stream() refuses them so far");
  }
  if (memory && answer.idle.gpus > 0) notes.push_back(IdleText(answer));
  if (answer.estimate.fits && answer.estimate.reorganisation_unknown) {
    notes.push_back(fmt::format(
        "a caching allocator would reorganise its memory here, as it was seen "
        "to on {}; what that costs on {} was never measured and is not "
        "charged",
        planner::train::kMemoHardware, request.hardware.name));
  }
  const int64_t head_dim = request.model.head_dim();
  if (request.hardware.OtherHeads(head_dim)) {
    notes.push_back(fmt::format(
        "attention's speed on {} was measured over heads of {}, and this "
        "model's are of {}",
        request.hardware.name, request.hardware.attention_head_dim, head_dim));
  }
  if (!request.hardware.note.empty()) {
    notes.push_back(request.hardware.note);
  }
  return notes;
}

Json PartsJson(const NamedParts& parts) {
  Json json;
  for (const auto& [name, value] : parts) json[name] = value;
  return json;
}

Json TrainObject(const TrainAnswer& answer) {
  const Estimate& estimate = answer.estimate;
  Json json;
  AddSpeed(json, estimate);
  json["step_s"] = OrNull(estimate.fits, estimate.step_s);
  AddEvidence(json, answer.request);
  AddPeak(json, estimate);
  json["host_bytes_per_node"] =
      OrNull(HasMemory(estimate), int64_t(estimate.host_bytes_per_node));
  json["settings"] = SettingsJson(answer.request, estimate.settings);
  json["breakdown"] =
      OrNull(estimate.fits, PartsJson(StepParts(estimate.breakdown)));
  if (answer.longest) AddLongest(json, *answer.longest);
  if (!estimate.fits) json["would_fit"] = Json::array();
  for (const auto& remedy : answer.remedies) {
    json["would_fit"].push_back({{"flag", remedy.flag},
                                 {"value", remedy.value},
                                 {"without", remedy.without}});
  }
  if (answer.idle.gpus > 0) {
    json["idle_because"] = answer.idle.by_heads ? "heads" : "no_better";
    json["batch_using_all"] =
        OrNull(answer.idle.batch.has_value(), answer.idle.batch.value_or(0));
  }
  if (!answer.methods.empty()) json["methods"] = MethodsJson(answer.methods);
  json["notes"] = NotesOf(answer);
  return json;
}

Json PassJson(const PassTimes& pass) {
  return {{"matmul", pass.matmul},
          {"attention", pass.attention},
          {"elementwise", pass.elementwise},
          {"network", pass.network},
          {"exposed_copy", pass.exposed_copy},
          {"copy_out", pass.copy_out},
          {"copy_in", pass.copy_in}};
}

Json WordsJson(const TrainAnswer& answer, const std::string& not_validated) {
  const Request& request = answer.request;
  const std::string settings =
      HasMemory(answer.estimate)
          ? ": " + SettingsText(request, answer.estimate.settings)
          : "";
  Json would_fit = Json::array();
  for (const auto& remedy : answer.remedies) would_fit.push_back(remedy.Text());
  return {{"what", fmt::format("{} · {} tokens · {} × {}", request.model.name,
                               TokensText(request.seq_len), request.gpus,
                               request.hardware.name)},
          {"settings",
           fmt::format("method {}{}", MethodName(request.method), settings)},
          {"reason", ReasonText(answer)},
          {"would_fit", std::move(would_fit)},
          {"not_validated", not_validated}};
}

// Returns the page of --html, which needs no network.
std::string TrainPage(const TrainAnswer& answer) {
  const Estimate& estimate = answer.estimate;
  Json drawn = Json::array();
  std::vector<std::string_view> unproved;
  for (const TrainAnswer& each : answer.curves) {
    const Method method = each.request.method;
    if (EvidenceOf(each.request).speed.empty() && !each.curve.empty()) {
      unproved.push_back(MethodName(method));
    }
    drawn.push_back({{"method", MethodName(method)},
                     {"chosen", method == answer.request.method},
                     {"points", each.curve}});
  }
  const std::string not_validated =
      unproved.empty()
          ? ""
          : fmt::format(" Not validated on {} by any published table: {}.",
                        answer.request.hardware.name,
                        fmt::join(unproved, ", "));
  const Json data = {
      {"answer", TrainObject(answer)},
      {"about",
       {{"gpu_bytes", answer.request.hardware.memory_bytes},
        {"gpu_usable_bytes", estimate.gpu_usable_bytes},
        {"host_usable_bytes", estimate.host_usable_bytes},
        {"speed_evidence", SpeedEvidence(answer.request)},
        {"memory_evidence", MemoryEvidence(answer.request)}}},
      {"words", WordsJson(answer, not_validated)},
      {"memory",
       OrNull(HasMemory(estimate), PartsJson(MemoryParts(estimate.memory)))},
      {"layer",
       {{"forward", PassJson(estimate.layer.forward)},
        {"recompute", PassJson(estimate.layer.recompute)},
        {"backward", PassJson(estimate.layer.backward)}}},
      {"curves", std::move(drawn)}};
  // A name with "</script>" must not end the element that holds the JSON.
  const std::string text = absl::StrReplaceAll(
      data.dump(-1, ' ', false, Json::error_handler_t::replace),
      {{"<", "\\u003c"}});
  return absl::StrReplaceAll(kTrainPage, {{"@DATA@", text}});
}

std::string TrainWords(const TrainAnswer& answer) {
  const Request& request = answer.request;
  const Estimate& estimate = answer.estimate;
  std::string text = fmt::format(
      "{} on {} x {}, {} tokens, {}: {}\n", request.model.name, request.gpus,
      request.hardware.name, TokensText(request.seq_len),
      MethodName(request.method), ReasonText(answer));
  text += RemedyWords(answer);
  if (HasMemory(estimate)) {
    text += Row("settings", SettingsText(request, estimate.settings));
  }
  if (estimate.fits) {
    text += Row("MFU", fmt::format("{:.2f} % ({})", 100 * estimate.mfu,
                                   SpeedEvidence(request))) +
            Row("speed", fmt::format("{} tokens per GPU and second",
                                     Count(estimate.tokens_per_gpu_per_s))) +
            Row("step", fmt::format("{} ({} sequences)", Span(estimate.step_s),
                                    request.global_batch));
  }
  if (HasMemory(estimate)) {
    text += Row("GPU",
                fmt::format("{} of {} usable", Sized(estimate.gpu_peak_bytes),
                            Sized(estimate.gpu_usable_bytes)));
    if (estimate.host_bytes_per_node > 0) {
      text += Row("host", fmt::format("{} per node of {} usable",
                                      Sized(estimate.host_bytes_per_node),
                                      Sized(estimate.host_usable_bytes)));
    }
  }
  if (answer.longest) text += LongestWords(answer);
  if (estimate.fits) {
    text += "the step\n" +
            PartsTable(StepParts(estimate.breakdown), estimate.step_s, false);
  }
  if (HasMemory(estimate)) {
    text +=
        "a GPU's memory at its peak\n" +
        PartsTable(MemoryParts(estimate.memory), estimate.gpu_peak_bytes, true);
  }
  if (!answer.methods.empty()) {
    text +=
        "every method, at its best settings\n" + MethodsTable(answer.methods);
  }
  for (const auto& note : NotesOf(answer)) text += "note: " + note + "\n";
  return text;
}

// ---- The command ----

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
  const std::string text =
      flags.json ? TrainObject(answer).dump() + "\n" : TrainWords(answer);
  std::fputs(text.c_str(), flags.html == "-" ? stderr : stdout);
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
