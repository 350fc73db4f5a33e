#include "client/ctl/desk/train_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_join.h"
#include "client/ctl/text/format.h"
#include "planner/train/search.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/cli/cli.h"

namespace sluice::ctl {
namespace {

using planner::train::ModelShape;

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
  app.add_option("--tp", f.given.tp, "tensor parallel degree")->group(searched);
  app.add_option("--cp", f.given.cp, "context parallel")->group(searched);
  app.add_option("--sp", f.given.sp, "Ulysses degree")->group(searched);
  app.add_option("--dp", f.given.dp, "data parallel")->group(searched);
  app.add_option("--pp", f.given.pp, "pipeline parallel")->group(searched);
  app.add_option("--ep", f.given.ep, "megatron: ranks of a layer's experts")
      ->group(searched);
  app.add_option("--interleave", f.given.interleave,
                 "megatron: pieces of a pipeline stage")
      ->group(searched);
  app.add_option("--recompute", f.recompute,
                 "megatron, ring: none, selective or full")
      ->group(searched);
  app.add_option("--zero", f.given.zero, "ZeRO stage, 0 to 3")->group(searched);
  app.add_flag_callback(
         "--no-keep", [&f] { f.given.keep = false; },
         "trainer: nothing that backward needs stays on the GPU")
      ->group(searched);
  app.add_option("--alpha", f.alpha, "fraction swapped, 0 to 1, or 'auto'")
      ->group(searched);
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
  const int64_t product = f.batch.value_or(1) * f.accumulate.value_or(1);
  if (f.global_batch && (f.batch || f.accumulate) &&
      *f.global_batch != product) {
    return absl::InvalidArgumentError(fmt::format(
        "--global-batch {} is not --batch {} times --accumulate {}: give one "
        "of them",
        *f.global_batch, f.batch.value_or(1), f.accumulate.value_or(1)));
  }
  if (f.batch || f.accumulate) return product;
  return f.global_batch.value_or(16);
}

}  // namespace

std::vector<std::string> TrainFlags::batch_flags() const {
  std::vector<std::string> flags;
  if (batch) flags.emplace_back("--batch");
  if (accumulate) flags.emplace_back("--accumulate");
  return flags;
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

absl::StatusOr<planner::train::Request> TrainRequest(const TrainFlags& flags) {
  planner::train::Request request;
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

absl::StatusOr<planner::train::GivenSettings> TrainSettings(
    const TrainFlags& flags) {
  planner::train::GivenSettings given = flags.given;
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

}  // namespace sluice::ctl
