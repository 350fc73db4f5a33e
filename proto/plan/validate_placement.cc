// Checks a placement. The rest of the plan's check is in validate.cc.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "proto/base/status.h"
#include "proto/plan/validate.h"

namespace sluice::plan {
namespace {

// More buffers are not compared pair by pair: 70,000 would take seconds.
constexpr size_t kMostInPairs = 2000;

template <typename... Args>
absl::Status WrongPlacement(fmt::format_string<Args...> text, Args&&... args) {
  return absl::InternalError(fmt::format(text, std::forward<Args>(args)...));
}

absl::Status CheckBuffer(const Trace& trace, const Placement& placement,
                         size_t i) {
  const int64_t offset = placement.offsets[i].count();
  const int64_t end = offset + trace.buffers[i].size.count();
  if (offset < 0) {
    return WrongPlacement("buffer {} lies at {}, below 0", trace.buffers[i].id,
                          offset);
  }
  if (offset % trace.alignment.count() != 0) {
    return WrongPlacement("buffer {} lies at {}, no multiple of {}",
                          trace.buffers[i].id, offset, trace.alignment.count());
  }
  if (end > placement.peak.count()) {
    return WrongPlacement("buffer {} ends at {}, above the peak {}",
                          trace.buffers[i].id, end, placement.peak.count());
  }
  return absl::OkStatus();
}

bool LiveTogether(const Buffer& a, const Buffer& b) {
  return a.lower < b.upper && b.lower < a.upper;
}

bool Share(Bytes a, Bytes a_size, Bytes b, Bytes b_size) {
  return a < b + b_size && b < a + a_size && a_size > Bytes(0) &&
         b_size > Bytes(0);
}

absl::Status CheckPair(const Trace& trace, const Placement& placement, size_t i,
                       size_t j) {
  const Buffer& a = trace.buffers[i];
  const Buffer& b = trace.buffers[j];
  const Bytes at_a = placement.offsets[i];
  const Bytes at_b = placement.offsets[j];
  if (!LiveTogether(a, b) || !Share(at_a, a.size, at_b, b.size)) {
    return absl::OkStatus();
  }
  return WrongPlacement(
      "buffers {} and {} overlap: both live in [{}, {}), at [{}, {}) and "
      "[{}, {})",
      a.id, b.id, std::max(a.lower, b.lower), std::min(a.upper, b.upper),
      at_a.count(), (at_a + a.size).count(), at_b.count(),
      (at_b + b.size).count());
}

absl::Status CheckAllPairs(const Trace& trace, const Placement& placement) {
  for (size_t i = 0; i < trace.buffers.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      SLUICE_RETURN_IF_ERROR(CheckPair(trace, placement, j, i));
    }
  }
  return absl::OkStatus();
}

// Plays the trace: a new buffer must not overlap its neighbours among the live
// buffers. An overlap is found when the later of the two buffers is allocated.
absl::Status CheckByPlaying(const Trace& trace, const Placement& placement) {
  // Ordered by time; at equal times, frees come first.
  std::vector<std::tuple<int64_t, bool, size_t>> events;
  for (size_t k = 0; k < trace.buffers.size(); ++k) {
    const Buffer& b = trace.buffers[k];
    if (b.size == Bytes(0) || b.lower >= b.upper) continue;
    events.emplace_back(b.lower, true, k);
    events.emplace_back(b.upper, false, k);
  }
  std::sort(events.begin(), events.end());
  std::map<Bytes, size_t> lying;  // live buffers by offset
  for (const auto& [time, born, k] : events) {
    const Bytes offset = placement.offsets[k];
    if (!born) {
      lying.erase(offset);
      continue;
    }
    const auto [at, added] = lying.emplace(offset, k);
    if (!added) return CheckPair(trace, placement, at->second, k);
    if (at != lying.begin()) {
      SLUICE_RETURN_IF_ERROR(
          CheckPair(trace, placement, std::prev(at)->second, k));
    }
    if (std::next(at) != lying.end()) {
      SLUICE_RETURN_IF_ERROR(
          CheckPair(trace, placement, std::next(at)->second, k));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidatePlacement(const Trace& trace, const Placement& placement) {
  const size_t n = trace.buffers.size();
  if (placement.offsets.size() != n) {
    return WrongPlacement("{} offsets for {} buffers", placement.offsets.size(),
                          n);
  }
  if (placement.peak < placement.lower_bound) {
    return WrongPlacement("peak {} below its own lower bound {}",
                          placement.peak.count(),
                          placement.lower_bound.count());
  }
  for (size_t k = 0; k < n; ++k) {
    SLUICE_RETURN_IF_ERROR(CheckBuffer(trace, placement, k));
  }
  return n <= kMostInPairs ? CheckAllPairs(trace, placement)
                           : CheckByPlaying(trace, placement);
}

}  // namespace sluice::plan
