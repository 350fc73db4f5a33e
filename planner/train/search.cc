#include "planner/train/search.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "proto/base/status.h"

namespace sluice::planner::train {
namespace {

// Alphas and chunks to try where they are not given.
constexpr int kAlphaSteps = 16;
constexpr int64_t kSmallestChunk = 8 << 10;
constexpr int64_t kLargestChunk = 1 << 20;

std::vector<double> Alphas(const Request& request, const GivenSettings& given) {
  if (given.alpha) return {*given.alpha};
  if (request.method != Method::kMemo && request.method != Method::kSluice) {
    return {0};
  }
  std::vector<double> alphas;
  for (int i = 0; i <= kAlphaSteps; ++i) {
    alphas.push_back(double(i) / kAlphaSteps);
  }
  return alphas;
}

std::vector<int64_t> Chunks(const Request& request,
                            const GivenSettings& given) {
  if (given.chunk) return {*given.chunk};
  if (request.method != Method::kFpdt && request.method != Method::kSluice) {
    return {0};
  }
  std::vector<int64_t> chunks;
  for (int64_t chunk = kSmallestChunk; chunk <= kLargestChunk; chunk *= 2) {
    chunks.push_back(std::min(chunk, request.seq_len));
    if (chunk >= request.seq_len) break;
  }
  return chunks;
}

// Where alpha is open everything may also stay in HBM, as the run tries it
// (planner/stream/settings.h).
std::vector<Settings> Placements(const Request& request,
                                 const GivenSettings& given,
                                 Settings settings) {
  std::vector<Settings> all;
  if (request.method == Method::kSluice && !given.alpha) {
    settings.alpha = 1;
    settings.resident = true;
    all.push_back(settings);
    settings.resident = false;
  }
  for (const double alpha : Alphas(request, given)) {
    settings.alpha = alpha;
    all.push_back(settings);
  }
  return all;
}

// By how much the worse memory is overdrawn; 1 or less: it fits.
double Overdraft(const Estimate& estimate) {
  double worst = estimate.gpu_peak_bytes / estimate.gpu_usable_bytes;
  if (estimate.host_usable_bytes > 0) {
    worst = std::max(worst,
                     estimate.host_bytes_per_node / estimate.host_usable_bytes);
  }
  return worst;
}

// Of two that fit the faster; of equally fast ones the one that needs less.
bool Better(const Estimate& a, const Estimate& b) {
  if (a.fits != b.fits) return a.fits;
  if (a.fits && a.step_s != b.step_s) return a.step_s < b.step_s;
  return Overdraft(a) < Overdraft(b);
}

// What decides the host memory of `sluice`: sp, chunk, alpha. ZeRO's stage does
// not, but for a few MiB: what exceeds it need not be tried with the others,
// which takes most of the time.
using HostMemoryKey = std::tuple<int64_t, int64_t, double>;
bool HostIsFull(const Request& request, const Estimate& estimate) {
  return request.method == Method::kSluice &&
         estimate.host_bytes_per_node > 1.01 * estimate.host_usable_bytes;
}

}  // namespace

absl::StatusOr<Estimate> BestEstimate(const Request& request,
                                      const GivenSettings& given) {
  SLUICE_RETURN_IF_ERROR(Validate(request, given));
  bool no_heads = false;
  absl::StatusOr<std::vector<Settings>> candidates =
      Candidates(request, given, &no_heads);
  if (!candidates.ok()) return candidates.status();
  // One stands for all: there is no such division, whatever it would take.
  if (no_heads) candidates->resize(1);
  std::set<HostMemoryKey> host_full;
  Estimate best;
  bool first = true;
  for (Settings settings : *candidates) {
    for (const int64_t chunk : Chunks(request, given)) {
      settings.chunk = chunk;
      for (const Settings& placed : Placements(request, given, settings)) {
        const HostMemoryKey key{placed.sp, chunk, placed.alpha};
        if (no_heads && !first) continue;
        if (!placed.resident && host_full.contains(key)) continue;
        Estimate estimate = EstimateStep(request, placed);
        if (HostIsFull(request, estimate)) host_full.insert(key);
        if (first || Better(estimate, best)) best = std::move(estimate);
        first = false;
      }
    }
  }
  if (no_heads) {
    best.fits = false;
    const std::optional<int64_t> batch = BatchThatDivides(request, given);
    best.reason = batch ? Reason::kBatch : Reason::kHeads;
    best.batch_that_divides = batch.value_or(0);
  }
  return best;
}

absl::StatusOr<LongestSequence> FindLongest(Request request,
                                            const GivenSettings& given,
                                            double max_step_s) {
  LongestSequence longest;
  // Whether so many steps of length are within both limits.
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

  // Every setting needs more memory and time for more tokens, so what fits is
  // a prefix.
  int64_t fits = 1, fails = kLongest / kLengthStep + 1;
  for (int64_t next = 2; fits + 1 < fails;) {
    SLUICE_ASSIGN_OR_RETURN(const bool does, fits_at(next));
    (does ? fits : fails) = next;
    const bool doubling = longest.stopped_by == Reason::kOk;
    next = doubling ? std::min(2 * fits, fails - 1) : (fits + fails) / 2;
  }
  return longest;
}

}  // namespace sluice::planner::train
