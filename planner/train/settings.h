// How a model is trained: the method and its parallelism.
//
// Thread safety: values and pure functions.
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
#include "planner/stream/states.h"
#include "planner/train/hardware.h"
#include "planner/train/model.h"

namespace sluice::planner::train {

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

// A method has its name above, its step here, defined in its own source, its
// row below, and its row in README.md. Settings must be complete.
StepParts MegatronStep(const Request& request, const Settings& settings);
StepParts MemoStep(const Request& request, const Settings& settings);
StepParts UlyssesStep(const Request& request, const Settings& settings);
StepParts FpdtStep(const Request& request, const Settings& settings);
StepParts AlstStep(const Request& request, const Settings& settings);
StepParts UpipeStep(const Request& request, const Settings& settings);
StepParts SluiceStep(const Request& request, const Settings& settings);

struct MethodTraits {
  std::string_view name;
  std::string_view what = "";  // in parentheses behind the name, in help
  std::string_view degrees;    // the flags that divide its GPUs, for messages
  int zero = 0;                // its only ZeRO stage; 0: several
  bool alpha = false;          // swaps a fraction of the tokens
  bool chunk = false;          // cuts sequences into chunks
  bool recompute = false;      // recomputation is a choice
  bool memory_plan = false;    // plans memory, without a caching allocator
  StepParts (*step)(const Request&, const Settings&);

  bool Has(std::string_view degree) const {
    return degrees.find(degree) != degrees.npos;
  }
};
// In the order of Method.
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

// The program that runs method sluice. kTrainer: sluice-train; its ranks share
// every sequence and shard only optimizer states (ZeRO-1). kPython: the Python
// package, a model streamed under FSDP2 (ZeRO-3) with sluice.AdamW.
enum class Engine { kTrainer, kPython };
inline constexpr Engine kEngines[] = {Engine::kTrainer, Engine::kPython};

std::string_view EngineName(Engine engine);  // "trainer", "python"
absl::StatusOr<Engine> FindEngine(std::string_view name);

// What backward recomputes of a layer, in megatron and ring. kNone: nothing.
// kSelective: what elementwise kernels make, and in ring every second matmul.
// kFull: the layer, from its input.
enum class Recompute { kNone, kSelective, kFull };
inline constexpr Recompute kRecomputes[] = {
    Recompute::kNone, Recompute::kSelective, Recompute::kFull};

std::string_view RecomputeName(Recompute recompute);  // "none", …
absl::StatusOr<Recompute> FindRecompute(std::string_view name);

// megatron, memo: tp x cp x dp x pp GPUs. ring: tp x cp x dp. upipe: sp x cp x
// dp. The others: sp x dp.
struct Settings {
  Engine engine = Engine::kTrainer;  // sluice
  int64_t tp = 1, cp = 1, sp = 1, dp = 1, pp = 1;
  int zero = 1;
  // memo, sluice: fraction of the tokens that have their other skeletal tensors
  // in host memory; the rest is recomputed.
  double alpha = 0;
  bool resident = false;  // sluice: everything stays in HBM, nothing is copied
  stream::StatePlace states = stream::StatePlace::kHbm;  // sluice: of AdamW
  int64_t chunk = 0;  // fpdt, sluice: tokens over all ranks
  // sluice: the number of first chunks that backward runs again, in groups of
  // so many layers (kPython: one), and, kTrainer, the last fraction of the
  // tokens, which keep layer inputs and attention output in HBM.
  int64_t rerun_chunks = 0, rerun_layers = 1;
  double kept = 0;
  // Returns the fraction of a sequence's tokens that runs again.
  double rerun_part(int64_t seq_len) const {
    return std::min(1.0, double(rerun_chunks * chunk) / double(seq_len));
  }
  Recompute recompute = Recompute::kFull;  // megatron, ring
  // megatron: pieces of a pipeline stage, interleaved with pieces of other
  // stages; ranks over which a layer's experts are spread.
  int64_t interleave = 1, ep = 1;
  // Transient addresses come from a memory plan and not from a caching
  // allocator. Always the method's own choice, except in MEMO's ablation.
  bool memory_plan = false;
  // Number of GPUs that share one sequence's states and activations.
  int64_t sequence_gpus() const { return tp * cp * sp; }
  int64_t gpus() const { return tp * cp * sp * dp * pp; }
};

// The given settings; the others are searched.
struct GivenSettings {
  std::optional<Engine> engine;
  std::optional<int64_t> tp, cp, sp, dp, pp;
  std::optional<int64_t> zero;
  std::optional<double> alpha;
  bool keep = true;  // kTrainer; false: HBM holds only tensors in use
  std::optional<int64_t> chunk;
  std::optional<bool> memory_plan;
  std::optional<Recompute> recompute;
  std::optional<int64_t> interleave, ep;
};

struct Request {
  ModelShape model;
  std::vector<std::string> model_notes;  // as set by ReadHuggingFaceConfig
  Hardware hardware;
  Method method = Method::kSluice;
  int64_t gpus = 0;  // in EstimateStep: those that the settings use
  int64_t seq_len = 0;
  int64_t global_batch = 16;  // sequences per step
};

// Returns the number of parts of a chunk's queries if ranks hold the same heads
// (stream::HeadLayout): sluice-train's, 1 elsewhere.
int64_t RowParts(const Request& request, const Settings& settings);

// Returns every combination that `given` allows, those with the most GPUs
// first, without alpha and chunk (which are 0 unless given: the method chooses
// them). GPUs may stay idle, so more GPUs can do whatever fewer can, exactly up
// to 64 GPUs and by powers of two beyond. If no combination divides the heads,
// sets `*no_heads` and returns one of them. InvalidArgument: there is no
// combination.
absl::StatusOr<std::vector<Settings>> Candidates(const Request& request,
                                                 const GivenSettings& given,
                                                 bool* no_heads);

// Returns the fewest sequences per step, at least the request's, that all of
// these GPUs can share with heads that divide, or nullopt if no number helps.
std::optional<int64_t> BatchUsingAll(const Request& request,
                                     const GivenSettings& given);

inline constexpr int64_t kMostGpus = 1 << 16;
// Limit of sluice-train's --ranks.
inline constexpr int64_t kMostRanks = 1024;

// Returns the values that a method searches, for `settings` that are otherwise
// complete.
std::vector<Recompute> Recomputes(const Request& request,
                                  const GivenSettings& given);
std::vector<int64_t> Interleaves(const Request& request,
                                 const GivenSettings& given,
                                 const Settings& settings);

// Returns the divisors in ascending order.
std::vector<int64_t> Divisors(int64_t n);

// InvalidArgument: the message has the flag, the value and the limit.
absl::Status Validate(const Request& request, const GivenSettings& given);

// Parses with ParseCount (proto/base/sizes.h) and checks the limits of a
// sequence.
absl::StatusOr<int64_t> ParseTokens(std::string_view text);
// Returns "1M", "640K", "1000".
std::string TokensText(int64_t tokens);

}  // namespace sluice::planner::train
