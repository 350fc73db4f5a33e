#include "client/ctl/train_flags.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "client/ctl/table.h"
#include "planner/train/search.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using planner::train::ModelShape;

// A name has no slash and no ending; a file does, or is there.
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

// A shape from --layers, --hidden, …; what is left out is GPT's.
absl::StatusOr<ModelShape> ShapeOfFlags(const TrainFlags& flags) {
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
  const ModelShape model = flags.swiglu ? stream::Llama(std::move(sizes))
                                        : stream::Gpt(std::move(sizes));
  SLUICE_RETURN_IF_ERROR(model.Validate());
  return model;
}

bool AnyShapeFlag(const TrainFlags& f) {
  return f.layers || f.hidden || f.heads || f.kv_heads || f.head_dim || f.ffn ||
         f.vocab || f.swiglu;
}

absl::StatusOr<ModelShape> ModelOf(const TrainFlags& flags) {
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
  return planner::train::ReadHuggingFaceConfig(text, Printable(flags.model));
}

absl::StatusOr<planner::train::Hardware> HardwareOf(const TrainFlags& flags) {
  if (!IsFile(flags.hardware, ".toml")) {
    return planner::train::FindHardware(Printable(flags.hardware));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile(flags.hardware));
  return planner::train::ReadHardware(text, Printable(flags.hardware));
}

}  // namespace

void AddTrainFlags(CLI::App& app, TrainFlags& f) {
  app.add_option("--model", f.model,
                 "a shipped shape or a Hugging Face config.json");
  app.add_option("--hardware", f.hardware, "a shipped profile or a TOML file")
      ->required();
  app.add_option("--gpus", f.gpus, "GPUs in all")->required();
  app.add_option("--seq-len", f.seq_len, "tokens: 131072, 128K, 1M");
  app.add_flag("--max-seq-len", f.max_seq_len,
               "also the longest that fits, in steps of 64K");
  app.add_option("--method", f.method, "megatron ulysses memo fpdt sluice");
  app.add_option("--global-batch", f.global_batch, "sequences a step");
  const char* searched = "What is not given is searched";
  app.add_option("--tp", f.given.tp, "tensor parallel degree")->group(searched);
  app.add_option("--cp", f.given.cp, "context parallel")->group(searched);
  app.add_option("--sp", f.given.sp, "Ulysses degree")->group(searched);
  app.add_option("--dp", f.given.dp, "data parallel")->group(searched);
  app.add_option("--pp", f.given.pp, "pipeline parallel")->group(searched);
  app.add_option("--zero", f.given.zero, "ZeRO stage, 0 to 3")->group(searched);
  app.add_option("--alpha", f.given.alpha, "fraction swapped, 0 to 1")
      ->group(searched);
  app.add_option("--chunk", f.chunk, "tokens of a chunk: 64K")->group(searched);
  const char* shape = "A shape, instead of --model";
  app.add_option("--layers", f.layers)->group(shape);
  app.add_option("--hidden", f.hidden)->group(shape);
  app.add_option("--heads", f.heads)->group(shape);
  app.add_option("--kv-heads", f.kv_heads)->group(shape);
  app.add_option("--head-dim", f.head_dim)->group(shape);
  app.add_option("--ffn", f.ffn)->group(shape);
  app.add_option("--vocab", f.vocab)->group(shape);
  app.add_flag("--swiglu", f.swiglu, "Llama's FFN, untied head")->group(shape);
  app.add_flag("--json", f.json, "print JSON");
  app.add_option("--html", f.html, "write a page with pictures there");
}

absl::StatusOr<planner::train::Request> TrainRequest(const TrainFlags& flags) {
  planner::train::Request request;
  SLUICE_ASSIGN_OR_RETURN(request.model, ModelOf(flags));
  SLUICE_ASSIGN_OR_RETURN(request.hardware, HardwareOf(flags));
  SLUICE_ASSIGN_OR_RETURN(request.method,
                          planner::train::FindMethod(Printable(flags.method)));
  request.gpus = flags.gpus;
  request.global_batch = flags.global_batch;
  if (flags.seq_len.empty() && !flags.max_seq_len) {
    return absl::InvalidArgumentError(
        "give --seq-len (tokens, e.g. 1M), or --max-seq-len to look for it");
  }
  if (!flags.seq_len.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        request.seq_len, planner::train::ParseTokens(Printable(flags.seq_len)));
  }
  return request;
}

absl::StatusOr<planner::train::GivenSettings> TrainSettings(
    const TrainFlags& flags) {
  planner::train::GivenSettings given = flags.given;
  if (!flags.chunk.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        given.chunk, planner::train::ParseTokens(Printable(flags.chunk)));
  }
  return given;
}

}  // namespace sluice::ctl
