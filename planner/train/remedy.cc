#include "planner/train/remedy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "proto/base/status.h"

namespace sluice::planner::train {
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

// Larger numbers of GPUs that leave none idle: products of a degree that
// divides the heads and one that divides the sequences (and a context degree if
// the method has one), and powers of two times the request's number.
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
  // Heads do not depend on the length.
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
  const std::optional<int64_t> batch = BatchUsingAll(request, given);
  idle.by_heads = batch != request.global_batch;
  if (idle.by_heads) idle.batch = batch;
  return idle;
}

}  // namespace sluice::planner::train
