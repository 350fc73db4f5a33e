// How a model is trained: the method and its parallel strategy.
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

// A method is its name above, its step here, defined in a source of its own,
// its row below, and its row in README.md. Settings are whole.
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
  std::string_view degrees;    // the flags that divide its GPUs, as messages
  int zero = 0;                // the only ZeRO stage it has; 0: several
  bool alpha = false;          // swaps a fraction of the tokens
  bool chunk = false;          // cuts sequences into chunks
  bool recompute = false;      // has a choice of what backward computes again
  bool memory_plan = false;    // by itself, not from a caching allocator
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

// What runs method sluice. kTrainer: sluice-train; its ranks share every
// sequence and shard optimizer states alone (ZeRO-1). kPython: the Python
// package, a model streamed under FSDP2 (ZeRO-3) with sluice.AdamW.
enum class Engine { kTrainer, kPython };
inline constexpr Engine kEngines[] = {Engine::kTrainer, Engine::kPython};

std::string_view EngineName(Engine engine);  // "trainer", "python"
absl::StatusOr<Engine> FindEngine(std::string_view name);

// What backward computes again of a layer, in megatron and ring. kNone: all
// that it needs is kept. kSelective: what elementwise kernels make again, in
// ring also every second matmul. kFull: the layer, from its input.
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
  // memo, sluice: fraction of the tokens that keep their other skeletal tensors
  // in host memory; the rest is recomputed.
  double alpha = 0;
  bool resident = false;  // sluice: all of it stays in HBM, and nothing moves
  stream::StatePlace states = stream::StatePlace::kHbm;  // sluice: AdamW's
  int64_t chunk = 0;  // fpdt, sluice: tokens over all ranks
  // sluice: the first chunks that backward runs again, so many layers together
  // (kPython: one), and, kTrainer, the last part of the tokens, which keep
  // layer inputs and attention output in HBM.
  int64_t rerun_chunks = 0, rerun_layers = 1;
  double kept = 0;
  // The fraction of a sequence's tokens that runs again.
  double rerun_part(int64_t seq_len) const {
    return std::min(1.0, double(rerun_chunks * chunk) / double(seq_len));
  }
  Recompute recompute = Recompute::kFull;  // megatron, ring
  // megatron: pieces of a pipeline stage, which alternate with pieces of other
  // stages; ranks over which a layer's experts are spread.
  int64_t interleave = 1, ep = 1;
  // Transient addresses come from a memory plan rather than from a caching
  // allocator. The method's own choice but for MEMO's ablation.
  bool memory_plan = false;
  // The method's states and activations of this many GPUs share one sequence.
  int64_t sequence_gpus() const { return tp * cp * sp; }
  int64_t gpus() const { return tp * cp * sp * dp * pp; }
};

// What is given of the settings; the rest is searched.
struct GivenSettings {
  std::optional<Engine> engine;
  std::optional<int64_t> tp, cp, sp, dp, pp;
  std::optional<int64_t> zero;
  std::optional<double> alpha;
  bool keep = true;  // kTrainer; false: nothing but what is in use stays in HBM
  std::optional<int64_t> chunk;
  std::optional<bool> memory_plan;
  std::optional<Recompute> recompute;
  std::optional<int64_t> interleave, ep;
};

struct Request {
  ModelShape model;
  std::vector<std::string> model_notes;  // as ReadHuggingFaceConfig sets them
  Hardware hardware;
  Method method = Method::kSluice;
  int64_t gpus = 0;  // to EstimateStep: those that the settings use
  int64_t seq_len = 0;
  int64_t global_batch = 16;  // sequences per step
};

// Parts of a chunk's queries where ranks hold the same heads
// (stream::HeadLayout): sluice-train's, 1 elsewhere.
int64_t RowParts(const Request& request, const Settings& settings);

// Every combination that `given` allows, those of most GPUs first, alpha and
// chunk aside (those are 0 unless given: the method chooses). GPUs may stay
// idle: what more GPUs can do includes what fewer can, exactly up to 64 GPUs
// and by powers of two beyond. Where no combination's heads divide, `*no_heads`
// is set and one of them is returned. InvalidArgument where there is none at
// all.
absl::StatusOr<std::vector<Settings>> Candidates(const Request& request,
                                                 const GivenSettings& given,
                                                 bool* no_heads);

// The fewest sequences per step, at least the request's, that all of these GPUs
// can share with heads that divide; none where no number helps.
std::optional<int64_t> BatchUsingAll(const Request& request,
                                     const GivenSettings& given);

inline constexpr int64_t kMostGpus = 1 << 16;
// sluice-train's --ranks.
inline constexpr int64_t kMostRanks = 1024;

// What of these a method searches, of `settings` that are whole else.
std::vector<Recompute> Recomputes(const Request& request,
                                  const GivenSettings& given);
std::vector<int64_t> Interleaves(const Request& request,
                                 const GivenSettings& given,
                                 const Settings& settings);

// In ascending order.
std::vector<int64_t> Divisors(int64_t n);

// InvalidArgument: flag, value, limit.
absl::Status Validate(const Request& request, const GivenSettings& given);

// ParseCount (proto/base/sizes.h) within what a sequence may have.
absl::StatusOr<int64_t> ParseTokens(std::string_view text);
// "1M", "640K", "1000".
std::string TokensText(int64_t tokens);

}  // namespace sluice::planner::train
