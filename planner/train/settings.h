// What is trained, and how: the model, the method and its parallelism.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/stream/model_shape.h"
#include "planner/stream/states.h"
#include "planner/train/hardware.h"

namespace sluice::planner::train {

using stream::ModelShape;

// Returns a shipped shape. NotFound: the message lists the names.
absl::StatusOr<ModelShape> FindModel(std::string_view name);
std::vector<std::string> ModelNames();

// Reads a Hugging Face config.json (model_type llama, mistral, qwen2, qwen3,
// gpt2, gpt_neox, mixtral, qwen3_moe). `source` is the file's name in messages.
// `notes`, if given, gets sentences about fields of the file that the shape
// cannot express.
absl::StatusOr<ModelShape> ReadHuggingFaceConfig(
    std::string_view json, std::string_view source,
    std::vector<std::string>* notes = nullptr);

enum class Method {
  kMegatron,
  kUlysses,
  kMemo,
  kFpdt,
  kAlst,
  kUpipe,
  kRing,
  kSluice
};

struct Request;
struct Settings;
struct StepParts;

// Each method has a step function here, a row in kMethodTraits, and a row in
// README.md. `settings` must be complete.
StepParts MegatronStep(const Request& request, const Settings& settings);
StepParts MemoStep(const Request& request, const Settings& settings);
StepParts UlyssesStep(const Request& request, const Settings& settings);
StepParts FpdtStep(const Request& request, const Settings& settings);
StepParts AlstStep(const Request& request, const Settings& settings);
StepParts UpipeStep(const Request& request, const Settings& settings);
StepParts SluiceStep(const Request& request, const Settings& settings);

struct MethodTraits {
  std::string_view name;
  std::string_view what = "";  // shown after the name in help
  std::string_view degrees;    // the flags of its degrees of parallelism
  int zero = 0;                // its only ZeRO stage; 0 if it has several
  bool alpha = false;          // it swaps a fraction of the tokens
  bool chunk = false;          // it cuts sequences into chunks
  bool recompute = false;      // recomputation is a choice
  bool memory_plan = false;    // it plans memory, without a caching allocator
  StepParts (*step)(const Request&, const Settings&);

  bool Has(std::string_view degree) const {
    return degrees.find(degree) != degrees.npos;
  }
};
// Ordered by Method.
inline constexpr MethodTraits kMethodTraits[] = {
    {.name = "megatron",
     .degrees = "--tp --cp --dp --pp --ep --interleave",
     .recompute = true,
     .step = &MegatronStep},
    {.name = "ulysses", .degrees = "--sp --dp", .step = &UlyssesStep},
    {.name = "memo",
     .degrees = "--tp --cp --dp --pp",
     .alpha = true,
     .memory_plan = true,
     .step = &MemoStep},
    {.name = "fpdt", .degrees = "--sp --dp", .chunk = true, .step = &FpdtStep},
    {.name = "alst", .degrees = "--sp --dp", .zero = 3, .step = &AlstStep},
    {.name = "upipe",
     .what = " (Ulysses in head chunks)",
     .degrees = "--sp --cp --dp",
     .zero = 3,
     .step = &UpipeStep},
    // FSDP with Megatron's kernels and collectives.
    {.name = "ring",
     .what = " (FSDP with ring context parallelism)",
     .degrees = "--tp --cp --dp",
     .zero = 3,
     .recompute = true,
     .step = &MegatronStep},
    {.name = "sluice",
     .degrees = "--sp --dp",
     .alpha = true,
     .chunk = true,
     .memory_plan = true,
     .step = &SluiceStep}};

constexpr const MethodTraits& TraitsOf(Method method) {
  return kMethodTraits[size_t(method)];
}
inline constexpr auto kMethods = [] {
  std::array<Method, std::size(kMethodTraits)> all = {};
  for (size_t i = 0; i < all.size(); ++i) all[i] = Method(i);
  return all;
}();

std::string_view MethodName(Method method);
absl::StatusOr<Method> FindMethod(std::string_view name);

// The program that runs method sluice. kTrainer is sluice-train: its ranks
// share every sequence and shard only optimizer states (ZeRO-1). kPython is the
// Python package: it streams a model under FSDP2 (ZeRO-3) with sluice.AdamW.
enum class Engine { kTrainer, kPython };
inline constexpr Engine kEngines[] = {Engine::kTrainer, Engine::kPython};

std::string_view EngineName(Engine engine);  // "trainer" or "python"
absl::StatusOr<Engine> FindEngine(std::string_view name);

// What backward recomputes of a layer in megatron and ring: kSelective the
// outputs of elementwise kernels, and in ring also those of every second
// matmul; kFull the whole layer from its input.
enum class Recompute { kNone, kSelective, kFull };
inline constexpr Recompute kRecomputes[] = {
    Recompute::kNone, Recompute::kSelective, Recompute::kFull};

std::string_view RecomputeName(Recompute recompute);  // "none", …
absl::StatusOr<Recompute> FindRecompute(std::string_view name);

// Complete settings of a run. The number of GPUs is tp x cp x dp x pp for
// megatron and memo, tp x cp x dp for ring, sp x cp x dp for upipe, and sp x dp
// for the others.
struct Settings {
  Engine engine = Engine::kTrainer;  // sluice only
  int64_t tp = 1, cp = 1, sp = 1, dp = 1, pp = 1;
  int zero = 1;
  // memo, sluice: the swapped fraction of the tokens, for skeletal tensors that
  // are not always swapped. The other tokens are recomputed.
  double alpha = 0;
  bool resident = false;  // sluice: everything stays in HBM
  // sluice: where AdamW's states are.
  stream::StatePlace states = stream::StatePlace::kHbm;
  int64_t chunk = 0;         // fpdt, sluice: tokens of a chunk, over all ranks
  int64_t rerun_chunks = 0;  // sluice: first chunks that backward runs again
  int64_t rerun_layers = 1;  // sluice: layers run again together (kPython: one)
  // kTrainer: fraction of tokens, the last ones, with inputs and o in HBM.
  double kept = 0;
  // Returns the fraction of a sequence's tokens that runs again.
  double rerun_part(int64_t seq_len) const {
    return std::min(1.0, double(rerun_chunks * chunk) / double(seq_len));
  }
  Recompute recompute = Recompute::kFull;  // megatron, ring
  // megatron: pieces into which a pipeline stage is cut for interleaving.
  int64_t interleave = 1;
  int64_t ep = 1;  // megatron: ranks over which a layer's experts are spread
  // Whether transient addresses come from a memory plan and not from a caching
  // allocator. The method determines it, except in MEMO's ablation.
  bool memory_plan = false;
  // Returns the GPUs that share one sequence's states and activations.
  int64_t sequence_gpus() const { return tp * cp * sp; }
  int64_t gpus() const { return tp * cp * sp * dp * pp; }
};

// The settings that a user has given. The unset ones are searched.
struct GivenSettings {
  std::optional<Engine> engine;
  std::optional<int64_t> tp, cp, sp, dp, pp;
  std::optional<int64_t> zero;
  std::optional<double> alpha;
  bool keep = true;  // kTrainer: whether HBM may keep tensors not in use
  std::optional<int64_t> chunk;
  std::optional<bool> memory_plan;
  std::optional<Recompute> recompute;
  std::optional<int64_t> interleave, ep;
};

struct Request {
  ModelShape model;
  std::vector<std::string> model_notes;  // notes of ReadHuggingFaceConfig
  Hardware hardware;
  Method method = Method::kSluice;
  int64_t gpus = 0;  // for EstimateStep, only the GPUs in use
  int64_t seq_len = 0;
  int64_t global_batch = 16;  // sequences per step
};

// Returns the number of parts into which a chunk's queries are cut if several
// ranks have the same heads (stream::HeadLayout). Only sluice-train cuts them.
int64_t RowParts(const Request& request, const Settings& settings);

// Returns every combination of settings that `given` allows, those with the
// most GPUs first, with alpha and chunk 0 unless given. GPUs may stay idle, so
// the result includes the settings for fewer GPUs (above 64 GPUs, for powers of
// two). If no combination divides the heads, sets `*no_heads` and returns one
// that does not. InvalidArgument: there is no combination.
absl::StatusOr<std::vector<Settings>> Candidates(const Request& request,
                                                 const GivenSettings& given,
                                                 bool* no_heads);

// Returns the least number of sequences per step, at least the request's, with
// which all GPUs can be used, or nullopt if no number helps.
std::optional<int64_t> BatchUsingAll(const Request& request,
                                     const GivenSettings& given);

inline constexpr int64_t kMostGpus = 1 << 16;
inline constexpr int64_t kMostRanks = 1024;  // of sluice-train

// Return the values to search, or only the given one. `settings` must have all
// degrees of parallelism.
std::vector<Recompute> Recomputes(const Request& request,
                                  const GivenSettings& given);
std::vector<int64_t> Interleaves(const Request& request,
                                 const GivenSettings& given,
                                 const Settings& settings);

std::vector<int64_t> Divisors(int64_t n);

// Returns InvalidArgument with the flag, its value and the limit.
absl::Status Validate(const Request& request, const GivenSettings& given);

// Parses by ParseCount (proto/base/units.h) and checks a sequence's limits.
absl::StatusOr<int64_t> ParseTokens(std::string_view text);
std::string TokensText(int64_t tokens);  // "1M", "640K", "1000"

}  // namespace sluice::planner::train
