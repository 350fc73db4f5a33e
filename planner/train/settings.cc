#include "planner/train/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "planner/train/layer.h"
#include "proto/base/status.h"
#include "proto/base/units.h"

namespace sluice::planner::train {
namespace {

template <typename T>
absl::StatusOr<T> FindNamed(const auto& all, std::string_view (*name_of)(T),
                            const char* what, std::string_view name) {
  std::string names;
  for (const T each : all) {
    if (name_of(each) == name) return each;
    names += fmt::format(" {}", name_of(each));
  }
  return absl::InvalidArgumentError(
      fmt::format("no {} '{}'; give one of{}", what, name, names));
}

bool TensorParallel(Method method) { return TraitsOf(method).Has("--tp"); }

// Returns whether the settings of MEMO's tables (ZeRO 1, full recomputation, no
// interleaving) apply: only on the tables' machine, the only one for which the
// cost of reorganisation is known.
bool AsPublished(const Request& request) {
  return request.hardware.reorganisation_s_per_byte > 0;
}

// Returns the ZeRO stages to try. Stages that give the same step appear once.
std::vector<int> Stages(const Request& request, const GivenSettings& given,
                        const Settings& settings) {
  if (given.zero) return {int(*given.zero)};
  if (const int only = TraitsOf(request.method).zero; only > 0) return {only};
  const bool as_published =
      TensorParallel(request.method) && AsPublished(request);
  if (as_published || settings.gpus() == 1) return {1};
  if (request.method == Method::kSluice) {
    return {settings.engine == Engine::kTrainer ? 1 : 3};
  }
  // No framework shards gradients or weights inside a pipeline.
  if (settings.pp > 1) return {1};
  return {1, 2, 3};
}

bool Trainer(const Request& request, const Settings& settings) {
  return request.method == Method::kSluice &&
         settings.engine == Engine::kTrainer;
}

bool Allows(const std::optional<int64_t>& given, int64_t value) {
  return !given || *given == value;
}

// Returns whether the ranks can share the heads. sluice-train cuts rows if its
// ranks do not divide the heads. FPDT's table has 40 and 56 heads at batch 1 on
// any number of GPUs, so its all-to-all supports uneven heads.
bool HeadsDivide(const Request& request, const Settings& s) {
  if (Trainer(request, s)) return s.sp <= kMostRanks;
  if (request.method == Method::kFpdt) return s.sp <= request.model.heads;
  return request.model.heads % (s.tp * s.sp) == 0;
}

// Returns a message about a setting in `given` that the engine lacks, or "".
std::string Lacks(Engine engine, const GivenSettings& given) {
  const bool trainer = engine == Engine::kTrainer;
  const int64_t zero = trainer ? 1 : 3;
  if (given.zero.value_or(zero) != zero) {
    return fmt::format("{} has --zero {} alone", EngineName(engine), zero);
  }
  if (trainer && given.dp.value_or(1) != 1) return "trainer has no --dp";
  if (!trainer && given.alpha) return "python has no --alpha";
  return !trainer && !given.keep ? "python has no --no-keep" : "";
}

class Enumeration {
 public:
  // Enumerates combinations that use at least `least` GPUs.
  Enumeration(const Request& request, const GivenSettings& given, int64_t least)
      : request_(request), given_(given), least_(least) {}

  std::vector<Settings> All() {
    if (request_.method == Method::kSluice) {
      for (const Engine engine : kEngines) {
        if (given_.engine.value_or(engine) != engine) continue;
        if (!Lacks(engine, given_).empty()) continue;
        SequenceParallel({.engine = engine});
      }
    } else if (TensorParallel(request_.method)) {
      for (int64_t gpus = request_.gpus; gpus >= least_; --gpus) Tensor(gpus);
    } else {
      SequenceParallel({});
    }
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Settings& a, const Settings& b) {
                       return a.gpus() > b.gpus();
                     });
    return std::move(found_);
  }
  // Returns a combination that does not divide the heads, if there was one.
  const std::optional<Settings>& undivided() const { return undivided_; }

 private:
  static constexpr int64_t kFewGpus = 64;

  // Returns whether a number of ranks is tried, of which all are possible: any
  // few, then multiples of 4, and above kFewGpus what cuts rows in 2^n parts.
  bool IsTried(int64_t sp) const {
    const int64_t parts = sp / std::gcd(sp, request_.model.heads);
    return given_.sp || sp <= (sp % 4 == 0 ? kFewGpus : kFewGpus / 2) ||
           std::has_single_bit(uint64_t(parts));
  }

  void SequenceParallel(Settings s) {
    const bool trainer = Trainer(request_, s);
    std::vector<int64_t> dps = {1};
    if (!trainer) dps = Divisors(request_.global_batch);
    int64_t most =
        given_.sp.value_or(trainer ? kMostRanks : request_.model.heads);
    // UPipe exchanges heads inside a node, with a ring between full nodes.
    int64_t within = 0;
    if (request_.method == Method::kUpipe) {
      within = std::min(request_.hardware.gpus_per_node, request_.model.heads);
      if (!given_.sp) most = within;
      while (request_.model.heads % within != 0) --within;
    }
    for (s.sp = 1; s.sp <= std::min(most, request_.gpus); ++s.sp) {
      if (trainer && !IsTried(s.sp)) continue;
      const bool ring = within > 0 && (s.sp == within || given_.cp);
      for (const int64_t dp : dps) {
        s.dp = dp;
        const int64_t rings = ring ? request_.gpus / (s.sp * dp) : 1;
        for (s.cp = 1; s.cp <= rings; ++s.cp) {
          const bool usual = s.cp <= 8 || std::has_single_bit(uint64_t(s.cp));
          if (!usual && given_.cp != s.cp) continue;
          if (s.gpus() >= least_ && s.gpus() <= request_.gpus) Try(s);
        }
      }
    }
  }

  void Tensor(int64_t gpus) {
    if (gpus < request_.gpus && gpus > kFewGpus &&
        !std::has_single_bit(uint64_t(gpus))) {
      return;
    }
    const std::vector<int64_t> divisors = Divisors(gpus);
    for (const int64_t tp : divisors) {
      for (const int64_t cp : divisors) {
        for (const int64_t pp : divisors) {
          const int64_t used = tp * cp * pp;
          if (gpus % used != 0 || request_.global_batch % (gpus / used) != 0) {
            continue;
          }
          TryExperts({.tp = tp, .cp = cp, .dp = gpus / used, .pp = pp});
        }
      }
    }
  }

  void TryExperts(Settings s) {
    const bool spread = TraitsOf(request_.method).Has("--ep");
    for (const int64_t ep :
         Divisors(spread ? std::max<int64_t>(request_.model.experts, 1) : 1)) {
      s.ep = ep;
      if (s.dp * s.cp % ep == 0 && Allows(given_.ep, ep)) Try(s);
    }
  }

  void Try(Settings s) {
    if (s.pp > 1 && !TraitsOf(request_.method).Has("--pp")) return;
    // Stages may be uneven (126 layers on 4: 32, 32, 31, 31), but not empty.
    if (s.pp > request_.model.layers) return;
    if (!Allows(given_.tp, s.tp) || !Allows(given_.cp, s.cp) ||
        !Allows(given_.sp, s.sp) || !Allows(given_.dp, s.dp) ||
        !Allows(given_.pp, s.pp)) {
      return;
    }
    s.alpha = given_.alpha.value_or(0);
    s.chunk = given_.chunk.value_or(0);
    // Every rank needs at least one row of a chunk.
    if (s.chunk > 0 && s.chunk < s.sp) return;
    if (Interleaves(request_, given_, s).empty()) return;
    s.memory_plan =
        given_.memory_plan.value_or(TraitsOf(request_.method).memory_plan);
    if (!HeadsDivide(request_, s)) {
      if (!undivided_) undivided_ = s;
      return;
    }
    for (const int stage : Stages(request_, given_, s)) {
      // Spread experts are sharded over fewer ranks than the other weights,
      // which is modelled for stage 1 only.
      if (s.ep > 1 && stage > 1) continue;
      s.zero = stage;
      found_.push_back(s);
    }
  }

  const Request& request_;
  const GivenSettings& given_;
  const int64_t least_;
  std::vector<Settings> found_;
  std::optional<Settings> undivided_;
};

// Refuses settings that the method lacks.
absl::Status CheckKind(const Request& request, const GivenSettings& given) {
  const MethodTraits& traits = TraitsOf(request.method);
  const std::pair<const char*, std::optional<int64_t>> degrees[] = {
      {"--sp", given.sp}, {"--tp", given.tp},
      {"--cp", given.cp}, {"--pp", given.pp},
      {"--ep", given.ep}, {"--interleave", given.interleave}};
  for (const auto& [flag, value] : degrees) {
    const bool dense = request.model.experts == 0 && flag == degrees[4].first;
    if (value.value_or(1) == 1 || (traits.Has(flag) && !dense)) continue;
    return absl::InvalidArgumentError(fmt::format(
        "{} is {}; method {} has none{}: give {}", flag, *value, traits.name,
        dense ? " without experts" : "", traits.degrees));
  }
  if (traits.zero > 0 && given.zero.value_or(traits.zero) != traits.zero) {
    return absl::InvalidArgumentError(
        fmt::format("--zero is {}; method {} has {} alone", *given.zero,
                    traits.name, traits.zero));
  }
  const std::tuple<const char*, bool, bool> choices[] = {
      {"--recompute", given.recompute.has_value(), traits.recompute},
      {"--alpha", given.alpha.has_value(), traits.alpha},
      {"--no-keep", !given.keep, request.method == Method::kSluice},
      {"--chunk", given.chunk.has_value(), traits.chunk}};
  for (const auto& [flag, is_given, has] : choices) {
    if (!is_given || has) continue;
    return absl::InvalidArgumentError(fmt::format(
        "{}: method {} has no choice of it: leave it out", flag, traits.name));
  }
  return absl::OkStatus();
}

// Refuses settings that the given engine, or every engine, does not support.
absl::Status CheckEngine(const Request& request, const GivenSettings& given) {
  if (request.method != Method::kSluice) {
    if (!given.engine) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("--engine: method {} has none; sluice has",
                    MethodName(request.method)));
  }
  std::vector<std::string> lacks;
  for (const Engine engine : kEngines) {
    if (given.engine.value_or(engine) != engine) continue;
    lacks.push_back(Lacks(engine, given));
    if (lacks.back().empty()) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("no engine for that: {}", fmt::join(lacks, "; ")));
}

}  // namespace

int64_t RowParts(const Request& request, const Settings& settings) {
  return Trainer(request, settings)
             ? settings.sp / std::gcd(settings.sp, request.model.heads)
             : 1;
}

std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

std::string_view MethodName(Method method) { return TraitsOf(method).name; }

absl::StatusOr<Method> FindMethod(std::string_view name) {
  return FindNamed<Method>(kMethods, &MethodName, "method", name);
}

std::string_view RecomputeName(Recompute recompute) {
  constexpr std::string_view kNames[] = {"none", "selective", "full"};
  return kNames[size_t(recompute)];
}

absl::StatusOr<Recompute> FindRecompute(std::string_view name) {
  return FindNamed<Recompute>(kRecomputes, &RecomputeName, "recompute", name);
}

std::vector<Recompute> Recomputes(const Request& request,
                                  const GivenSettings& given) {
  const bool choice = TraitsOf(request.method).recompute &&
                      (request.method == Method::kRing ||
                       (!AsPublished(request) && !given.memory_plan));
  if (given.recompute) return {*given.recompute};
  if (!choice) return {Recompute::kFull};
  return {std::begin(kRecomputes), std::end(kRecomputes)};
}

// Every piece has the same number of layers, and sequences are processed in
// rounds of as many sequences as stages (Megatron-LM, interleaved 1F1B).
std::vector<int64_t> Interleaves(const Request& request,
                                 const GivenSettings& given,
                                 const Settings& settings) {
  const int64_t sequences = request.global_batch / settings.dp;
  std::vector<int64_t> most_first = {1};
  if (TraitsOf(request.method).Has("--interleave") && settings.pp > 1 &&
      sequences % settings.pp == 0) {
    most_first = Divisors(int64_t(StageLayers(request, settings)));
    std::ranges::reverse(most_first);
  }
  const int64_t only = given.interleave.value_or(AsPublished(request) ? 1 : 0);
  if (only > 0) std::erase_if(most_first, [=](int64_t n) { return n != only; });
  return most_first;
}

std::string_view EngineName(Engine engine) {
  return engine == Engine::kTrainer ? "trainer" : "python";
}

absl::StatusOr<Engine> FindEngine(std::string_view name) {
  return FindNamed<Engine>(kEngines, &EngineName, "engine", name);
}

absl::Status Validate(const Request& request, const GivenSettings& given) {
  SLUICE_RETURN_IF_ERROR(request.model.Validate());
  if (request.model.experts > 0 && request.method == Method::kSluice) {
    return absl::InvalidArgumentError(fmt::format(
        "model {} is a mixture of {} experts, which method sluice does not "
        "model; the other methods do",
        request.model.name, request.model.experts));
  }
  // For shorter chunks, kernel efficiencies are unknown.
  constexpr int64_t kLeastChunk = 128;
  const std::tuple<const char*, int64_t, int64_t, int64_t> whole[] = {
      {"--gpus", request.gpus, 1, kMostGpus},
      {"--seq-len", request.seq_len, 1, int64_t{1} << 30},
      {"--global-batch", request.global_batch, 1, 1 << 20},
      {"--tp", given.tp.value_or(1), 1, kMostGpus},
      {"--cp", given.cp.value_or(1), 1, kMostGpus},
      {"--sp", given.sp.value_or(1), 1, kMostGpus},
      {"--dp", given.dp.value_or(1), 1, kMostGpus},
      {"--pp", given.pp.value_or(1), 1, kMostGpus},
      {"--zero", given.zero.value_or(1), 0, 3},
      {"--interleave", given.interleave.value_or(1), 1, request.model.layers},
      {"--ep", given.ep.value_or(1), 1, kMostGpus},
      {"--chunk", given.chunk.value_or(kLeastChunk), kLeastChunk,
       int64_t{1} << 30}};
  for (const auto& [flag, value, least, most] : whole) {
    if (value >= least && value <= most) continue;
    return absl::InvalidArgumentError(
        fmt::format("{} is {}; it must be {} to {}", flag, value, least, most));
  }
  const double alpha = given.alpha.value_or(0);
  if (!(alpha >= 0 && alpha <= 1)) {
    return absl::InvalidArgumentError(
        fmt::format("--alpha is {}; it must be 0 to 1", alpha));
  }
  SLUICE_RETURN_IF_ERROR(CheckKind(request, given));
  return CheckEngine(request, given);
}

std::optional<int64_t> BatchUsingAll(const Request& request,
                                     const GivenSettings& given) {
  std::optional<int64_t> fewest;
  Request tried = request;
  for (const int64_t dp : Divisors(request.gpus)) {
    tried.global_batch = (request.global_batch + dp - 1) / dp * dp;
    if (fewest && tried.global_batch >= *fewest) continue;
    if (!Enumeration(tried, given, request.gpus).All().empty()) {
      fewest = tried.global_batch;
    }
  }
  return fewest;
}

absl::StatusOr<std::vector<Settings>> Candidates(const Request& request,
                                                 const GivenSettings& given,
                                                 bool* no_heads) {
  Enumeration enumeration(request, given, /*least=*/1);
  std::vector<Settings> all = enumeration.All();
  *no_heads = all.empty();
  if (!all.empty()) return all;
  if (enumeration.undivided()) return std::vector{*enumeration.undivided()};
  return absl::InvalidArgumentError(fmt::format(
      "no settings of {} on up to {} GPUs have what is given: dp must divide "
      "the global batch of {}, pp be at most {} layers, a chunk have a token "
      "of each rank, the degrees multiply to at most the GPUs, ep divide "
      "experts and dp x cp (ZeRO 0, 1), pp sequences, --interleave layers",
      MethodName(request.method), request.gpus, request.global_batch,
      request.model.layers));
}

absl::StatusOr<int64_t> ParseTokens(std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t count, ParseCount(text));
  if (count >= 1 && count <= int64_t{1} << 30) return count;
  return absl::InvalidArgumentError(
      fmt::format("'{}' tokens: give 1 to 1024M", text));
}

std::string TokensText(int64_t tokens) {
  if (tokens == 0) return "0";
  if (tokens % (1 << 20) == 0) return fmt::format("{}M", tokens >> 20);
  if (tokens % (1 << 10) == 0) return fmt::format("{}K", tokens >> 10);
  return fmt::format("{}", tokens);
}

}  // namespace sluice::planner::train
