#include "planner/train/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "planner/train/layer.h"
#include "proto/base/status.h"

namespace sluice::planner::train {
namespace {

constexpr int kAlphaSteps = 16;
constexpr int64_t kSmallestChunk = 8 << 10;
constexpr int64_t kLargestChunk = 1 << 20;

std::vector<double> Alphas(const Request& request, const GivenSettings& given) {
  if (given.alpha) return {*given.alpha};
  if (!TraitsOf(request.method).alpha) return {0};
  std::vector<double> alphas;
  for (int i = 0; i <= kAlphaSteps; ++i) {
    alphas.push_back(double(i) / kAlphaSteps);
  }
  return alphas;
}

std::vector<int64_t> Chunks(const Request& request,
                            const GivenSettings& given) {
  if (given.chunk) return {*given.chunk};
  if (!TraitsOf(request.method).chunk) return {0};
  std::vector<int64_t> chunks;
  for (int64_t chunk = kSmallestChunk; chunk <= kLargestChunk; chunk *= 2) {
    chunks.push_back(std::min(chunk, request.seq_len));
    if (chunk >= request.seq_len) break;
  }
  return chunks;
}

// Returns the ratio of needed to usable memory, for the GPU or the host,
// whichever is larger.
double Overdraft(const Estimate& estimate) {
  double worst = estimate.gpu_peak_bytes / estimate.gpu_usable_bytes;
  if (estimate.host_usable_bytes > 0) {
    worst = std::max(worst,
                     estimate.host_bytes_per_node / estimate.host_usable_bytes);
  }
  return worst;
}

bool Better(const Estimate& a, const Estimate& b) {
  if (a.fits != b.fits) return a.fits;
  if (a.fits && a.step_s != b.step_s) return a.step_s < b.step_s;
  return Overdraft(a) < Overdraft(b);
}

// Returns a lower bound, for all methods, of a step's seconds on one GPU.
double LeastSeconds(const Request& request) {
  const PassTimes forward = ForwardKernels(request, 1, true);
  const PassTimes backward = BackwardKernels(request, 1, true);
  return double(request.global_batch) *
         (double(request.model.layers) *
              (forward.matmul + forward.attention + backward.matmul +
               backward.attention) +
          HeadSeconds(request, 1));
}

// Tries all values of the settings that Candidates leaves open.
class Search {
 public:
  Search(const Request& request, const GivenSettings& given)
      : request_(request),
        given_(given),
        least_seconds_((1 - 1e-9) * LeastSeconds(request)) {}

  void Try(Settings settings) {
    request_.gpus = settings.gpus();
    // With so few GPUs, compute alone takes longer than the best step so far.
    if (best_ && best_->fits &&
        least_seconds_ / double(settings.gpus()) > best_->step_s) {
      return;
    }
    for (const int64_t chunk : Chunks(request_, given_)) {
      settings.chunk = chunk;
      if (request_.method == Method::kSluice) {
        for (const auto place :
             {stream::StatePlace::kHbm, stream::StatePlace::kHost}) {
          settings.states = place;
          TryPlacements(settings);
        }
        continue;
      }
      for (const double alpha : Alphas(request_, given_)) {
        settings.alpha = alpha;
        // No larger alpha fits, because it needs more GPU and host memory.
        if (!TryRecomputes(settings)) break;
      }
    }
  }
  Estimate& best() { return *best_; }

 private:
  // If alpha is open, also tries to keep everything in HBM, as sluice-train
  // does (planner/stream/settings.h).
  void TryPlacements(Settings settings) {
    if (settings.engine == Engine::kPython) {
      Judge(PlaceRerun(request_, settings));
      return;
    }
    if (!given_.alpha && given_.keep) {
      settings.alpha = 1;
      settings.resident = true;
      Judge(settings);
      settings.resident = false;
    }
    for (const double alpha : Alphas(request_, given_)) {
      settings.alpha = alpha;
      bool full = false;
      for (const Settings& placed :
           PlaceChunks(request_, settings, given_.keep)) {
        const Estimate estimate = Judge(placed);
        // A larger alpha needs more GPU and host memory, apart from rounding of
        // rows (hence 1.01).
        full = placed.rerun_chunks > 0 ||
               estimate.reason == Reason::kGpuMemory ||
               estimate.host_bytes_per_node > 1.01 * estimate.host_usable_bytes;
      }
      if (full) return;
    }
  }

  // Tries recomputation and interleaving. Returns whether any combination fits.
  // The first values are the fastest and need the most memory.
  bool TryRecomputes(Settings settings) {
    bool fits = false;
    for (const Recompute recompute : Recomputes(request_, given_)) {
      settings.recompute = recompute;
      const auto interleaves = Interleaves(request_, given_, settings);
      for (const int64_t interleave : interleaves) {
        settings.interleave = interleave;
        if (!Judge(settings).fits) continue;
        if (interleave == interleaves.front()) return true;
        fits = true;
        break;
      }
    }
    return fits;
  }

  Estimate Judge(const Settings& settings) {
    Estimate estimate = EstimateStep(request_, settings);
    if (!best_ || Better(estimate, *best_)) best_ = estimate;
    return estimate;
  }

  Request request_;  // with the number of GPUs being tried
  const GivenSettings& given_;
  const double least_seconds_;
  std::optional<Estimate> best_;
};

}  // namespace

absl::StatusOr<Estimate> BestEstimate(const Request& request,
                                      const GivenSettings& given) {
  SLUICE_RETURN_IF_ERROR(Validate(request, given));
  bool no_heads = false;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Settings> candidates,
                          Candidates(request, given, &no_heads));
  if (no_heads) {
    Settings settings = candidates.front();
    settings.chunk = Chunks(request, given).front();
    Estimate estimate = EstimateStep(request, settings);
    estimate.fits = false;
    estimate.reason = Reason::kHeads;
    return estimate;
  }
  Search search(request, given);
  for (const Settings& settings : candidates) search.Try(settings);
  Estimate best = std::move(search.best());
  // Speeds are per GPU of the request, including idle ones.
  const double used = double(best.settings.gpus()) / double(request.gpus);
  best.mfu *= used;
  best.tokens_per_gpu_per_s *= used;
  return best;
}

absl::StatusOr<LongestSequence> FindLongest(Request request,
                                            const GivenSettings& given,
                                            double max_step_s) {
  LongestSequence longest;
  const auto fits_at = [&](int64_t steps) -> absl::StatusOr<bool> {
    request.seq_len = steps * kLengthStep;
    SLUICE_ASSIGN_OR_RETURN(const Estimate probe, BestEstimate(request, given));
    const bool slow = probe.fits && probe.step_s > max_step_s;
    const bool fits = probe.fits && !slow;
    if (fits || longest.tokens == 0) longest.at = probe;
    if (fits) {
      longest.tokens = request.seq_len;
    } else {
      longest.stopped_by = slow ? Reason::kStep : probe.reason;
    }
    return fits;
  };
  SLUICE_ASSIGN_OR_RETURN(const bool any, fits_at(1));
  if (!any) return longest;

  // More tokens need more memory and time with every setting, so all lengths up
  // to the longest one fit, and a binary search finds it.
  int64_t fits = 1, fails = kLongest / kLengthStep + 1;
  for (int64_t next = 2; fits + 1 < fails;) {
    SLUICE_ASSIGN_OR_RETURN(const bool does, fits_at(next));
    (does ? fits : fails) = next;
    const bool doubling = longest.stopped_by == Reason::kOk;
    next = doubling ? std::min(2 * fits, fails - 1) : (fits + fails) / 2;
  }
  return longest;
}

namespace {

constexpr int64_t kMostTimesGpus = 64;
constexpr int64_t kShortest = 1 << 10;

std::vector<std::string> FlagsOf(const GivenSettings& given) {
  const std::pair<const char*, bool> flags[] = {
      {"--engine", given.engine.has_value()},
      {"--tp", given.tp.has_value()},
      {"--cp", given.cp.has_value()},
      {"--sp", given.sp.has_value()},
      {"--dp", given.dp.has_value()},
      {"--pp", given.pp.has_value()},
      {"--zero", given.zero.has_value()},
      {"--ep", given.ep.has_value()},
      {"--interleave", given.interleave.has_value()},
      {"--recompute", given.recompute.has_value()},
      {"--alpha", given.alpha.has_value()},
      {"--no-keep", !given.keep},
      {"--chunk", given.chunk.has_value()}};
  std::vector<std::string> names;
  for (const auto& [name, there] : flags) {
    if (there) names.emplace_back(name);
  }
  return names;
}

bool FitsMemory(const Request& request, const GivenSettings& given) {
  const absl::StatusOr<Estimate> estimate = BestEstimate(request, given);
  return estimate.ok() && estimate->fits;
}

std::optional<Remedy> Sharding(const Request& request, GivenSettings given) {
  if (given.zero.value_or(3) >= 3) return std::nullopt;
  given.zero = 3;
  if (!FitsMemory(request, given)) return std::nullopt;
  return Remedy{.flag = "--zero", .value = "3"};
}

std::optional<Remedy> FreeSearch(const Request& request,
                                 const GivenSettings& given) {
  const std::vector<std::string> flags = FlagsOf(given);
  if (flags.empty() || !FitsMemory(request, {})) return std::nullopt;
  return Remedy{.without = flags};
}

std::optional<Remedy> Batch(Request request, const GivenSettings& given) {
  const std::optional<int64_t> batch = BatchUsingAll(request, given);
  if (!batch) return std::nullopt;
  request.global_batch = *batch;
  if (!FitsMemory(request, given)) return std::nullopt;
  return Remedy{.flag = "--global-batch", .value = fmt::format("{}", *batch)};
}

// Returns the fastest other method that fits with its own best settings.
std::optional<Remedy> OtherMethod(Request request, const GivenSettings& given) {
  std::optional<Remedy> best;
  double best_s = 0;
  const Method asked = request.method;
  for (const Method method : kMethods) {
    if (method == asked) continue;
    request.method = method;
    const absl::StatusOr<Estimate> estimate = BestEstimate(request, {});
    if (!estimate.ok() || !estimate->fits) continue;
    if (best && estimate->step_s >= best_s) continue;
    best_s = estimate->step_s;
    best = Remedy{.flag = "--method",
                  .value = std::string(MethodName(method)),
                  .without = FlagsOf(given)};
  }
  return best;
}

// Returns larger numbers of GPUs that leave none idle: products of a degree
// that divides the heads and one that divides the sequences (and a context
// degree if the method has one), and powers of two times the request's number.
std::vector<int64_t> NumbersOfGpus(const Request& request) {
  const int64_t most = std::min(request.gpus * kMostTimesGpus, kMostGpus);
  const bool context = TraitsOf(request.method).Has("--cp");
  std::set<int64_t> numbers;
  for (int64_t n = request.gpus; n <= most; n *= 2) numbers.insert(n);
  const std::vector<int64_t> batches = Divisors(request.global_batch);
  for (const int64_t heads : Divisors(request.model.heads)) {
    for (const int64_t sequences : batches) {
      for (int64_t n = heads * sequences; n <= most; n *= 2) {
        numbers.insert(n);
        if (!context) break;
      }
    }
  }
  return {numbers.upper_bound(request.gpus), numbers.end()};
}

absl::StatusOr<std::optional<Remedy>> Shorter(Request request,
                                              const GivenSettings& given) {
  SLUICE_ASSIGN_OR_RETURN(const LongestSequence longest,
                          FindLongest(request, given));
  int64_t tokens = longest.tokens;
  if (tokens == 0 || tokens >= request.seq_len) {
    const int64_t asked = request.seq_len;
    for (tokens = kLengthStep; tokens >= kShortest; tokens /= 2) {
      request.seq_len = tokens;
      if (tokens < asked && FitsMemory(request, given)) break;
    }
  }
  if (tokens < kShortest) return std::nullopt;
  return Remedy{.flag = "--seq-len", .value = TokensText(tokens)};
}

// More GPUs can run whatever fewer can, so a binary search finds the fewest.
std::optional<Remedy> MoreGpus(const Request& request,
                               const GivenSettings& given) {
  const std::vector<int64_t> numbers = NumbersOfGpus(request);
  const auto fewest =
      std::partition_point(numbers.begin(), numbers.end(), [&](int64_t gpus) {
        Request other = request;
        other.gpus = gpus;
        return !FitsMemory(other, given);
      });
  if (fewest == numbers.end()) return std::nullopt;
  return Remedy{.flag = "--gpus", .value = fmt::format("{}", *fewest)};
}

}  // namespace

std::string Remedy::Text() const {
  std::string text = flag;
  if (!value.empty()) text += " " + value;
  if (without.empty()) return text;
  return fmt::format("{}without {}", text.empty() ? "" : text + ", ",
                     fmt::join(without, " "));
}

absl::StatusOr<std::vector<Remedy>> FindRemedies(const Request& request,
                                                 const GivenSettings& given) {
  SLUICE_ASSIGN_OR_RETURN(const Estimate asked, BestEstimate(request, given));
  std::vector<Remedy> remedies;
  if (asked.fits) return remedies;
  const auto add = [&](std::optional<Remedy> remedy) {
    if (remedy) remedies.push_back(*std::move(remedy));
  };
  add(Sharding(request, given));
  add(FreeSearch(request, given));
  add(Batch(request, given));
  add(OtherMethod(request, given));
  // A shorter sequence does not change which degrees divide the heads.
  if (asked.reason != Reason::kHeads) {
    SLUICE_ASSIGN_OR_RETURN(auto shorter, Shorter(request, given));
    add(std::move(shorter));
  }
  add(MoreGpus(request, given));
  return remedies;
}

IdleGpus WhyIdle(const Request& request, const GivenSettings& given,
                 const Estimate& asked) {
  IdleGpus idle{.gpus = request.gpus - asked.settings.gpus()};
  if (idle.gpus == 0) return idle;
  Request more = request;
  more.global_batch = BatchUsingAll(request, given).value_or(0);
  idle.by_heads = more.global_batch != request.global_batch;
  if (!idle.by_heads) return idle;
  const absl::StatusOr<Estimate> best = BestEstimate(more, given);
  if (best.ok() && best->fits && best->settings.gpus() == request.gpus) {
    idle.batch = more.global_batch;
  }
  return idle;
}

}  // namespace sluice::planner::train
