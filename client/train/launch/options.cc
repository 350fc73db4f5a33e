#include "client/train/launch/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/train/launch/outcome.h"
#include "client/train/launch/rank_environment.h"
#include "planner/stream/settings.h"
#include "proto/base/simulated.h"
#include "proto/base/status.h"
#include "proto/cli/cli.h"

namespace sluice::train {
namespace {

// Flags that Convert turns into options. `bad` is the first error.
struct RawFlags {
  std::string arch = "llama";
  int64_t kv_heads = 0;
  double dropout = 0;
  std::optional<int64_t> global_batch;
  std::optional<int64_t> chunk;
  std::optional<int> prefetch;
  std::optional<double> rerun;  // negative: auto
  absl::Status bad;
};

// Adds a flag and shows its initial value as its default.
void Add(CLI::App& app, const char* names, auto& to, const char* help) {
  app.add_option(names, to, help)->capture_default_str();
}

// Adds a flag with a text that `read` turns into a value, or refuses.
CLI::Option* AddText(CLI::App& app, RawFlags& raw, const char* name, auto read,
                     const char* help) {
  const auto keep = [&raw, read](const std::string& text) {
    raw.bad.Update(read(text));
  };
  return app.add_option_function<std::string>(name, keep, help);
}

// Adds a flag with one word of `choices`, the first of which is its default.
template <typename T>
void AddChoice(CLI::App& app, RawFlags& raw, const char* name, T& to,
               std::vector<std::pair<std::string, T>> choices,
               const char* help) {
  const std::string otherwise = choices[0].first;
  std::ranges::sort(choices, {}, &std::pair<std::string, T>::first);
  const auto read = [&to, choices, name](const std::string& text) {
    const auto found =
        std::ranges::find(choices, text, &std::pair<std::string, T>::first);
    if (found == choices.end()) {
      const auto word = [](std::string* list, auto& c) { *list += c.first; };
      return BadInput("{} '{}': must be one of {}", name, text,
                      absl::StrJoin(choices, ", ", word));
    }
    to = found->second;
    return absl::OkStatus();
  };
  AddText(app, raw, name, read, help)->default_str(otherwise);
}

// Adds a flag with a number from 0 to `most`, or with "auto", which is read as
// -1. An optional number stays unset for an empty text. The error quotes
// `range`.
CLI::Option* AddNumber(CLI::App& app, RawFlags& raw, const char* name, auto& to,
                       double most, const char* range, const char* help) {
  constexpr bool kOptional = requires { to.reset(); };
  const auto read = [&to, name, most, range](const std::string& text) {
    if (kOptional && text.empty()) return absl::OkStatus();
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const bool fits =
        !text.empty() && *end == '\0' && number >= 0 && number <= most;
    if (!fits && text != "auto") {
      return BadInput("{} '{}': must be {}, or 'auto'", name, text, range);
    }
    to = fits ? number : -1;
    return absl::OkStatus();
  };
  return AddText(app, raw, name, read, help);
}

constexpr char kSeconds[] = "seconds from 0 (never) to 1e9";

void AddSocket(CLI::App& app, RunOptions& o) {
  app.add_option("--socket", o.socket,
                 "the daemon's session socket (default: $SLUICE_SOCKET, then "
                 "/run/sluice/session.sock)");
}

void AddAttention(CLI::App& app, RunOptions& o, RawFlags& raw) {
  std::vector<std::pair<std::string, AttentionKernel>> kernels;
  for (const AttentionKernel kernel : stream::kAskedKernels) {
    kernels.emplace_back(stream::Name(kernel), kernel);
  }
  AddChoice(app, raw, "--attention", o.attention, std::move(kernels),
            "a real GPU's kernel: flash, efficient, cudnn, or auto: efficient "
            "for fp32; for bf16 cudnn on GPUs of compute capability 9.0 (heads "
            "of at most 128), else flash");
}

bool ReadFraction(const std::string& text, double& out) {
  if (text.empty() || absl::ascii_isspace(text[0])) return false;
  char* end = nullptr;
  out = std::strtod(text.c_str(), &end);
  return *end == '\0' && out >= 0 && out <= 1;
}

// Reads SWAP, keep:KEEP or keep:KEEP+SWAP.
bool ReadClass(std::string text, stream::ClassFractions& out) {
  constexpr std::string_view kKeep = "keep:";
  if (!text.starts_with(kKeep)) return ReadFraction(text, out.swap);
  text.erase(0, kKeep.size());
  const size_t plus = text.find('+');
  return ReadFraction(text.substr(0, plus), out.keep) &&
         (plus == std::string::npos ||
          ReadFraction(text.substr(plus + 1), out.swap));
}

absl::Status ReadFractions(const std::string& text, stream::FractionMap& out) {
  if (text.empty()) return absl::OkStatus();
  for (const std::string& item :
       std::vector<std::string>(absl::StrSplit(text, ','))) {
    const size_t equals = item.find('=');
    stream::ClassFractions f;
    if (equals == std::string::npos || equals == 0 ||
        !ReadClass(item.substr(equals + 1), f)) {
      return BadInput(
          "--fractions '{}': write CLASS=SWAP, CLASS=keep:KEEP or "
          "CLASS=keep:KEEP+SWAP, with numbers between 0 and 1",
          item);
    }
    const std::string name = item.substr(0, equals);
    if (!out.emplace(name, f).second) {
      return BadInput("--fractions: {} is given twice", name);
    }
  }
  return absl::OkStatus();
}

constexpr char kExamples[] = R"(Examples:
  sluice-train train --private --seq-len 4K --steps 20
  sluice-train check --seq-len 333 --chunk 64 --ranks 2 --heads 4
  sluice-train profile --private --ranks 2 > node.toml

Each command has its own examples: sluice-train train --help.

Exit status: 0 done; 2 bad input; 3 GPU or host memory ran out;
  4 a disk is full; 5 too many open files; 130 ended by Ctrl-C; 1 a fault.)";

constexpr char kTrainExamples[] = R"(Examples:
  # A tiny Llama on torch's own Python sources, with a daemon of its own:
  sluice-train train --private --seq-len 4096 --steps 20

  # Two ranks on the node's daemon, resumable:
  sluice-train train --ranks 2 --seq-len 32K --chunk 512 \
      --data corpus.txt --steps 1000 --save out/run --save-every 100
  sluice-train train --ranks 2 --seq-len 32K --chunk 512 \
      --data corpus.txt --steps 2000 --save out/run --resume out/run

  # Only on real GPUs (a simulated node is refused):
  sluice-train train --device cuda --ranks 2 --dtype bf16 --seq-len 32K \
      --data corpus.txt

  # Does this length fit, without training?
  sluice-train train --method alst --seq-len 8192 --probe --json

Exit status: 0 done, 1 a fault, 2 bad input, 3 GPU or host memory ran out
  (limited_by says which), 4 a disk is full, 5 too many open files,
  130 interrupted.
)";

constexpr char kCheckExamples[] = R"(Examples:
  sluice-train check --layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 \
      --arch llama --seq-len 333 --chunk 64 --ranks 2 --alpha 0.5 \
      --dtype fp32 --json
  sluice-train check --method alst --heads 4 --seq-len 333 --ranks 2

Exit status: 0 the gradients agree; 1 they do not, or a fault; 2 bad input; 3
  GPU or host memory ran out; 130 interrupted.
)";

void AddShared(CLI::App& app, RunOptions& o, RawFlags& raw) {
  app.add_option("--job", o.job, "label of the job; budgets bind it");
  Add(app, "--wait", o.wait,
      "seconds that a lease may wait for memory of --hbm or --host that other "
      "jobs hold (0: it is refused at once)");
  AddChoice<Method>(
      app, raw, "--method", o.method,
      {{"sluice", Method::kSluice},
       {"alst", Method::kAlst},
       {"keep-all", Method::kKeepAll},
       {"recompute", Method::kRecompute}},
      "keep-all, recompute, alst (Ulysses, tiled layers and loss, layer inputs "
      "in host memory) or sluice");
  AddChoice<std::string>(app, raw, "--arch", raw.arch,
                         {{"llama", "llama"}, {"gpt", "gpt"}}, "gpt or llama");
  cli::AddCount(app, "--layers", o.model.layers, "transformer layers");
  cli::AddCount(app, "--hidden", o.model.hidden, "width of a hidden state");
  cli::AddCount(app, "--heads", o.model.heads, "attention heads");
  cli::AddCount(app, "--kv-heads", raw.kv_heads, "heads of k and v")
      ->default_str("--heads");
  cli::AddCount(app, "--ffn", o.model.ffn, "inner width of the FFN");
  cli::AddCount(app, "--vocab", o.model.vocab, "token ids; 256 for bytes");
  cli::AddCount(app, "--seq-len", o.seq_len,
                "global tokens of a sequence: 4096, 128K, 1.5M");
  cli::AddCount(app, "--chunk", raw.chunk,
                "global tokens of a chunk (train: the fastest of those it "
                "measures; check: 512)");
  AddNumber(app, raw, "--alpha", o.alpha, 1, "between 0 and 1",
            "token fraction swapped to the host, 0 to 1, or 'auto'")
      ->default_str("auto");
  AddText(
      app, raw, "--fractions",
      [&o](const std::string& text) {
        return ReadFractions(text, o.fractions);
      },
      "fractions of single classes, besides --alpha: CLASS=SWAP, "
      "CLASS=keep:KEEP or CLASS=keep:KEEP+SWAP, with commas between "
      "(norm2=0,ffn_up=0.5,ffn_activation=keep:0.25+0.5)");
  app.add_flag_callback(
      "--no-keep", [&o] { o.keep = false; },
      "let the planner keep no rows on the GPU");
  app.add_option("--prefetch", raw.prefetch,
                 "slots through which chunks come back (with --chunk: 2)");
  AddNumber(
      app, raw, "--rerun", raw.rerun, 1, "a part of the tokens, 0 to 1",
      "part of the tokens, the first ones, 0 to 1, that backward runs again "
      "from layers' inputs rather than keep what attention left; auto: as "
      "little as host memory allows (with --chunk: 0)");
  cli::AddCount(app, "--rerun-layers", o.rerun_layers,
                "layers that run again together: of their inputs the first is "
                "kept (auto: what is fastest; with --rerun N: 1)");
  using Order = stream::BackwardOrder;
  AddChoice<std::optional<Order>>(
      app, raw, "--backward-order", o.order,
      {{"auto", {}},
       {"keys", Order::kKeysOuter},
       {"queries", Order::kQueriesOuter}},
      "which side of attention's backward stays: keys or queries (auto: with "
      "--chunk the one that moves less)");
  AddChoice<Dtype>(app, raw, "--dtype", o.dtype,
                   {{"fp32", Dtype::kFp32}, {"bf16", Dtype::kBf16}},
                   "fp32 or bf16");
  AddAttention(app, o, raw);
  app.add_flag("--round-output", o.round_output,
               "store attention's output in --dtype on sim too, as GPUs do");
  Add(app, "--ranks,--gpus", o.ranks,
      "ranks to start, one per GPU (ignored where RANK is set already)");
  Add(app, "--threads", o.threads, "compute threads per rank");
  Add(app, "--seed", o.seed, "seed of the first weights");
  cli::AddSize(app, "--hbm,--gpu-memory", o.hbm,
               "GPU memory per rank, e.g. 36MiB (0: all that is free of its "
               "GPU, shared with the ranks beside it)");
  cli::AddSize(app, "--host,--host-memory", o.host,
               "host memory of all local ranks together (0: what the daemon's "
               "budgets allow)");
  AddChoice<std::string>(
      app, raw, "--device", o.driver,
      {{"auto", ""}, {"cuda", "cuda"}, {"sim", "sim"}},
      "the driver that the daemon must have: cuda, sim, or auto (any)");
  const auto read_gpus = [&o](const std::string& text) -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(o.gpus, ParseGpuList(text));
    return absl::OkStatus();
  };
  AddText(app, raw, "--gpu", read_gpus,
          "GPU of the node, or one per rank: 1 or 0,2 (default: those "
          "with the most free memory)");
  app.add_flag("--json", o.json, "one JSON object on stdout at the end");
  app.add_option("--dropout", raw.dropout, "only 0 is there yet");
}

constexpr char kProfileExamples[] = R"(Examples:
  # On a machine without a GPU: how fast are its simulated GPUs?
  sluice-train profile --private --ranks 2 > node.toml
  # What would the trainer's own small model do on them?
  sluicectl plan train --hardware node.toml --gpus 2 --arch llama --layers 4 \
      --hidden 128 --heads 2 --ffn 344 --vocab 256 --seq-len 64K

Exit status: 0 done; 2 bad input; 130 interrupted; 1 a fault.
)";

void AddProfile(CLI::App& app, RunOptions& o, RawFlags& raw) {
  AddSocket(app, o);
  app.add_option("--job", o.job, "label of the job; budgets bind it");
  app.add_flag("--private", o.private_daemon,
               "start a sluiced with simulated GPUs for this run only");
  Add(app, "--ranks,--gpus", o.ranks, "ranks that measure at once");
  Add(app, "--threads", o.threads, "compute threads per rank");
  AddAttention(app, o, raw);
  app.footer(kProfileExamples);
}

void AddTraining(CLI::App& app, RunOptions& o, RawFlags& raw) {
  AddSocket(app, o);
  app.add_flag("--private", o.private_daemon,
               "start a sluiced for this run only, with a simulated GPU of "
               "--hbm (256 MiB) per rank and host memory of --host (1 GiB)");
  cli::AddCount(app, "--steps", o.steps,
                "steps in all, those resumed included");
  Add(app, "--lr", o.lr, "learning rate after the warm-up");
  cli::AddCount(app, "--warmup", o.warmup, "steps of linear warm-up");
  Add(app, "--clip", o.clip, "global gradient norm; 0: no clipping");
  Add(app, "--weight-decay", o.weight_decay,
      "weight decay of matrices; norms and biases have none");
  Add(app, "--beta1", o.beta1, "AdamW's mean of gradients");
  Add(app, "--beta2", o.beta2, "AdamW's mean of their squares");
  using Place = stream::StatePlace;
  AddChoice<std::optional<Place>>(
      app, raw, "--optimizer-states", o.optimizer_states,
      {{"auto", {}}, {"hbm", Place::kHbm}, {"host", Place::kHost}},
      "where AdamW's states lie: hbm; host: in host memory, each part of the "
      "model updated on the GPU before the next forward reads it (sluice "
      "only); auto: host where they leave no room for a step in hbm");
  cli::AddCount(app, "--batch", o.batch, "sequences of a micro-batch");
  cli::AddCount(app, "--accumulate", o.accumulate, "micro-batches of a step");
  cli::AddCount(app, "--global-batch", raw.global_batch,
                "sequences of a step: --batch times --accumulate");
  app.add_option("--data", o.data,
                 "text file or folder (bytes as tokens), or a .bin of token "
                 "ids (default: torch's Python sources)");
  app.add_option("--data-suffix", o.data_suffix,
                 "read only files of the folder with this suffix, e.g. .py");
  app.add_option("--token-bytes", o.token_bytes,
                 "bytes per id of a .bin without a header: 2 or 4");
  app.add_option("--save", o.save, "checkpoint folder");
  cli::AddCount(app, "--save-every", o.save_every,
                "steps between two saves; 0: save at the end only");
  Add(app, "--keep-checkpoints", o.keep_checkpoints,
      "how many of this run's newest checkpoints stay in --save; 0: all");
  app.add_option("--resume", o.resume,
                 "checkpoint to go on from, or a folder whose newest is taken");
  app.add_flag("--allow-other-data", o.allow_other_data,
               "let --resume go on with another text");
  app.add_option("--log-jsonl", o.log_jsonl, "file that gets a line per step");
  app.add_option("--trace", o.trace,
                 "file that gets the timeline of rank 0's last step, as JSON");
  app.add_flag("--probe", o.probe, "only find out whether the run fits");
  AddNumber(
      app, raw, "--late-after", o.late_after, 1e9, kSeconds,
      "seconds without progress after which a rank is named; 0: never, 'auto': "
      "two steps, at least 30")
      ->default_str("auto");
  AddNumber(app, raw, "--end-after", o.end_after, 1e9, kSeconds,
            "seconds without progress after which the run is ended; 0: never, "
            "'auto': 20 steps, at least 600")
      ->default_str("auto");
}

absl::Status ReadGlobalBatch(const RawFlags& raw, RunOptions& o) {
  if (!raw.global_batch) return absl::OkStatus();
  const int64_t global = *raw.global_batch;
  const bool accumulates = o.accumulate > 1;
  if (o.batch < 1 || global < 1 || global % o.batch != 0 ||
      (accumulates && global != o.sequences())) {
    return BadInput("--global-batch {}: must be --batch {} times {}", global,
                    o.batch,
                    accumulates ? fmt::format("--accumulate {}", o.accumulate)
                                : "a whole number of micro-batches");
  }
  o.accumulate = global / o.batch;
  return absl::OkStatus();
}

// Reads chunk, prefetch and rerun. Without --chunk a training run measures them
// later.
absl::Status ReadSettings(const RawFlags& raw, RunOptions& o) {
  if (raw.chunk && *raw.chunk < 1) {
    return BadInput(
        "--chunk {}: must be 1 or more (leave it out to have it measured)",
        *raw.chunk);
  }
  if (raw.prefetch && *raw.prefetch < 1) {
    return BadInput("--prefetch {}: must be between 1 and 64", *raw.prefetch);
  }
  // If settings are not measured, chunks run again only with --rerun.
  const bool given = raw.chunk || o.command != Command::kTrain;
  const double rerun = raw.rerun.value_or(given ? 0 : -1);
  if (rerun >= 0) o.rerun = rerun;
  o.chunk = raw.chunk.value_or(o.command == Command::kTrain ? 0 : 512);
  o.prefetch = raw.prefetch.value_or(0);
  if (o.chunk == 0) return absl::OkStatus();
  if (o.prefetch == 0) o.prefetch = 2;
  if (!o.rerun.has_value()) return absl::OkStatus();
  if (o.rerun_layers == 0) o.rerun_layers = 1;
  o.rerun_chunks = stream::RerunChunks(
      *o.rerun, stream::ChunkLayout(o.seq_len, o.chunk, 1).chunks());
  return absl::OkStatus();
}

absl::Status Convert(const RawFlags& raw, RunOptions& o) {
  SLUICE_RETURN_IF_ERROR(ReadSettings(raw, o));
  SLUICE_RETURN_IF_ERROR(ReadGlobalBatch(raw, o));
  if (raw.dropout != 0) {
    return BadInput("--dropout {}: only 0 is there yet", raw.dropout);
  }
  o.model.kv_heads = raw.kv_heads != 0 ? raw.kv_heads : o.model.heads;
  const bool gpt = raw.arch == "gpt";
  o.model = gpt ? stream::Gpt(o.model) : stream::Llama(o.model);
  o.model.name = raw.arch;
  o.model.max_positions = gpt ? o.seq_len : 0;
  return absl::OkStatus();
}

template <typename T>
struct Limit {
  const char* flag;
  T value;
  T low;
  T high;
};

template <typename T>
absl::Status CheckLimits(std::initializer_list<Limit<T>> limits) {
  for (const Limit<T>& limit : limits) {
    // Negated, so that NaN is refused too.
    if (!(limit.value >= limit.low && limit.value <= limit.high)) {
      return BadInput("{} {}: must be between {} and {}", limit.flag,
                      limit.value, limit.low, limit.high);
    }
  }
  return absl::OkStatus();
}

constexpr int64_t kMany = int64_t{1} << 40;

absl::Status CheckFractions(const RunOptions& o) {
  const absl::Status fractions = stream::CheckFractions(o.fractions, o.model);
  if (!fractions.ok()) {
    return BadInput("--fractions: {}", std::string(fractions.message()));
  }
  for (const auto& [name, f] : o.fractions) {
    if (!o.order || HasClass(*o.order, stream::FindClass(name)->which)) {
      continue;
    }
    return BadInput(
        "--fractions: {} is no class of this step: backward sums it in place "
        "with --backward-order {}",
        name, stream::Name(*o.order));
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const RunOptions& o) {
  SLUICE_RETURN_IF_ERROR(CheckLimits<int64_t>({
      {"--seq-len", o.seq_len, 1, int64_t{1} << 32},
      {"--chunk", o.chunk, 0, int64_t{1} << 32},
      {"--prefetch", o.prefetch, 0, 64},
      {"--rerun-layers", o.rerun_layers, 0, o.model.layers},
      {"--ranks", o.ranks, 1, 1024},
      {"--threads", o.threads, 1, 1024},
      {"--steps", o.steps, 0, kMany},
      {"--warmup", o.warmup, 0, kMany},
      {"--batch", o.batch, 1, 1 << 20},
      {"--accumulate", o.accumulate, 1, 1 << 20},
      {"--save-every", o.save_every, 0, kMany},
      {"--keep-checkpoints", o.keep_checkpoints, 0, kMany},
      {"--seed", o.seed, 0, INT64_MAX},
      {"--layers", o.model.layers, 1, 4096},
      {"--hidden", o.model.hidden, 1, 1 << 20},
      {"--heads", o.model.heads, 1, 4096},
      {"--kv-heads", o.model.kv_heads, 1, 4096},
      {"--ffn", o.model.ffn, 1, 1 << 22},
      {"--vocab", o.model.vocab, 1, 1 << 24},
  }));
  return CheckLimits<double>({
      {"--rerun", o.rerun.value_or(0), 0, 1},
      {"--lr", o.lr, 0, 1e3},
      {"--clip", o.clip, 0, 1e9},
      {"--weight-decay", o.weight_decay, 0, 1e3},
      {"--beta1", o.beta1, 0, 0.999999},
      {"--beta2", o.beta2, 0, 0.99999999},
  });
}

// Chunks that run again drop all free() classes, which must then swap nothing.
absl::Status CheckRerun(const RunOptions& o) {
  if (o.rerun.value_or(0) == 0) return absl::OkStatus();
  if (o.alpha > 0) {
    return BadInput("--rerun {}: with it --alpha {} must be 0 or 'auto'",
                    *o.rerun, o.alpha);
  }
  for (const auto& [name, f] : o.fractions) {
    if (!stream::FindClass(name)->free() || f == stream::ClassFractions{0, 0}) {
      continue;
    }
    return BadInput(
        "--rerun {}: with it --fractions {} must be 0: leave it out", *o.rerun,
        name);
  }
  return absl::OkStatus();
}

// Rejects, before a daemon is asked, what the attention kernel cannot compute.
absl::Status CheckAttention(const RunOptions& o) {
  if (o.attention == AttentionKernel::kAuto) return absl::OkStatus();
  const char* const name = stream::Name(o.attention);
  if (o.private_daemon || IsSimulated(o.driver)) {
    return BadInput(
        "--attention {}: a kernel of real GPUs, and this run's are simulated, "
        "where the CPU's flash attention computes: leave it out",
        name);
  }
  if (o.command == Command::kProfile) return absl::OkStatus();  // no model
  const auto refusal =
      stream::Refusal({.asked = o.attention,
                       .element_bytes = stream::ElementBytes(o.dtype),
                       .head_dim = o.model.head_dim()});
  if (!refusal.has_value()) return absl::OkStatus();
  return BadInput("--attention {}", *refusal);
}

// Returns the given flags in brackets, without those that may differ by rank.
std::string SharedFlags(const CLI::App& app) {
  constexpr std::string_view kOwn =
      " allow-other-data attention data data-suffix device end-after gpu hbm "
      "host job json keep-checkpoints late-after log-jsonl private ranks "
      "resume save socket threads token-bytes trace wait ";
  std::vector<std::string> shared;
  for (const CLI::Option* option : app.get_options()) {
    const std::string& name = option->get_lnames()[0];
    const std::string word = fmt::format(" {} ", name);
    if (option->count() == 0 || kOwn.find(word) != kOwn.npos) continue;
    shared.push_back("--" + name + " " + option->results().back());
  }
  return "[" + absl::StrJoin(shared, " ") + "]";
}

}  // namespace

const char* Name(Method method) {
  constexpr const char* kNames[] = {"keep-all", "recompute", "alst", "sluice"};
  return kNames[static_cast<size_t>(method)];
}

const char* Name(Dtype dtype) {
  return dtype == Dtype::kFp32 ? "fp32" : "bf16";
}

absl::Status ValidateRanks(const RunOptions& o, int64_t ranks) {
  SLUICE_RETURN_IF_ERROR(o.model.ValidateStream(ranks));
  return o.method == Method::kSluice ? absl::OkStatus()
                                     : o.model.ValidateWholeHeads(ranks);
}

absl::Status Validate(const RunOptions& o) {
  SLUICE_RETURN_IF_ERROR(CheckNumbers(o));
  if (o.command != Command::kProfile) {  // a profile has no model
    SLUICE_RETURN_IF_ERROR(ValidateRanks(o, o.ranks));
  }
  SLUICE_RETURN_IF_ERROR(CheckAttention(o));
  if (o.optimizer_states == stream::StatePlace::kHost &&
      o.method != Method::kSluice) {
    return BadInput(
        "--optimizer-states host with --method {}: only sluice's steps stream "
        "them; leave it out, or take --method sluice",
        Name(o.method));
  }
  SLUICE_RETURN_IF_ERROR(CheckFractions(o));
  SLUICE_RETURN_IF_ERROR(CheckRerun(o));
  if (!(o.wait >= 0 && o.wait <= 1e6)) {
    return BadInput("--wait {}: give 0 to 1e6 seconds", o.wait);
  }
  if (o.save_every > 0 && o.save.empty()) {
    return BadInput("--save-every needs --save DIR to save to");
  }
  if (o.keep_checkpoints > 0 && o.save.empty()) {
    return BadInput("--keep-checkpoints needs --save DIR to save to");
  }
  if (o.allow_other_data && o.resume.empty()) {
    return BadInput("--allow-other-data needs --resume DIR to go on from");
  }
  if (o.private_daemon && !o.socket.empty()) {
    return BadInput(
        "--private starts a daemon of its own, --socket {} names another: "
        "give one of them",
        o.socket);
  }
  if (o.private_daemon && !o.driver.empty() && !IsSimulated(o.driver)) {
    return BadInput(
        "--device cuda: a sluiced for this run alone has simulated GPUs only: "
        "name the node's daemon, whose [device] driver is \"cuda\", with "
        "--socket");
  }
  if (o.token_bytes != 0 && o.token_bytes != 2 && o.token_bytes != 4) {
    return BadInput("--token-bytes {}: a .bin holds ids of 2 or 4 bytes",
                    o.token_bytes);
  }
  if (o.job.empty() || o.job.size() > 64) {
    return BadInput("--job of {} characters: give a label of 1 to 64",
                    o.job.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<ParsedCommand> ParseCommandLine(
    const std::vector<std::string>& arguments) {
  ParsedCommand parsed;
  RunOptions& o = parsed.options;  // of the one subcommand that is given
  RawFlags raw;
  CLI::App app("Trains language models on sequences longer than GPU memory");
  app.name("sluice-train");
  app.footer(kExamples);
  app.require_subcommand(1);
  CLI::App* const train_app = app.add_subcommand("train", "train a model");
  AddShared(*train_app, o, raw);
  AddTraining(*train_app, o, raw);
  train_app->footer(kTrainExamples);
  CLI::App* const check_app =
      app.add_subcommand("check", "compare one step with plain torch in fp64");
  AddShared(*check_app, o, raw);
  check_app->add_option(
      "--socket", o.socket,
      "a daemon's session socket (default: a private sluiced, with a simulated "
      "GPU of --hbm (1 GiB) per rank and host memory of --host (4 GiB))");
  check_app->footer(kCheckExamples);
  CLI::App* const profile_app = app.add_subcommand(
      "profile", "measure this machine for sluicectl plan train, as TOML");
  AddProfile(*profile_app, o, raw);
  SLUICE_ASSIGN_OR_RETURN(const auto done, cli::Parse(app, arguments));
  if (done) {
    parsed.exit = *done;
    return parsed;
  }
  SLUICE_RETURN_IF_ERROR(raw.bad);
  if (check_app->parsed()) {
    o.command = Command::kCheck;
    o.private_daemon = o.socket.empty();
  }
  if (profile_app->parsed()) {
    o.command = Command::kProfile;
  } else {
    SLUICE_RETURN_IF_ERROR(Convert(raw, o));
  }
  SLUICE_RETURN_IF_ERROR(Validate(o));
  o.shared_flags = SharedFlags(*app.get_subcommands()[0]);
  return parsed;
}

}  // namespace sluice::train
