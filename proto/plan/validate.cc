#include "proto/plan/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "proto/base/status.h"

namespace sluice::plan {
namespace {

// Measured rates are doubles; a plan may use a hair more than a capacity.
constexpr double kTolerance = 1e-6;

// More buffers than this are not compared two by two: 70,000 would take
// seconds.
constexpr size_t kMostInPairs = 2000;

template <typename... Args>
absl::Status Wrong(fmt::format_string<Args...> text, Args&&... args) {
  return absl::InternalError(fmt::format(text, std::forward<Args>(args)...));
}

absl::Status CheckBuffer(const Trace& trace, const Placement& placement,
                         size_t i) {
  const int64_t offset = placement.offsets[i].count();
  const int64_t end = offset + trace.buffers[i].size.count();
  if (offset < 0) {
    return Wrong("buffer {} lies at {}, below 0", trace.buffers[i].id, offset);
  }
  if (offset % trace.alignment.count() != 0) {
    return Wrong("buffer {} lies at {}, no multiple of {}", trace.buffers[i].id,
                 offset, trace.alignment.count());
  }
  if (end > placement.peak.count()) {
    return Wrong("buffer {} ends at {}, above the peak {}", trace.buffers[i].id,
                 end, placement.peak.count());
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
  return Wrong(
      "buffers {} and {} overlap: both live in [{}, {}), at [{}, {}) and "
      "[{}, {})",
      a.id, b.id, std::max(a.lower, b.lower), std::min(a.upper, b.upper),
      at_a.count(), (at_a + a.size).count(), at_b.count(),
      (at_b + b.size).count());
}

template <typename Planned>
const Planned* FindOnce(const std::vector<Planned>& all,
                        const std::string& name, int* count) {
  const Planned* found = nullptr;
  *count = 0;
  for (const Planned& one : all) {
    if (one.name != name) continue;
    found = &one;
    ++*count;
  }
  return found;
}

absl::Status CheckSegments(const RankProfile& profile, const RankPlan& plan) {
  if (plan.segments.size() != profile.segments.size()) {
    return Wrong("{} segments planned, {} profiled", plan.segments.size(),
                 profile.segments.size());
  }
  for (const SegmentKind& kind : profile.segments) {
    int count = 0;
    const SegmentPlan* segment = FindOnce(plan.segments, kind.name, &count);
    if (count != 1) {
      return Wrong("segment '{}' planned {} times", kind.name, count);
    }
    if (absl::Status s = ValidatePlacement(kind.trace, segment->placement);
        !s.ok()) {
      return Annotate(s, fmt::format("segment '{}'", kind.name));
    }
    if (segment->base < Bytes(0) ||
        segment->base.count() % kind.trace.alignment.count() != 0) {
      return Wrong("segment '{}' has base {}, no multiple of {}", kind.name,
                   segment->base.count(), kind.trace.alignment.count());
    }
    if (segment->base + segment->placement.peak > plan.transient_peak) {
      return Wrong("segment '{}' ends at {}, above the region's {}", kind.name,
                   (segment->base + segment->placement.peak).count(),
                   plan.transient_peak.count());
    }
  }
  return absl::OkStatus();
}

// What was asked for, in person or by the rank's alpha.
absl::Status CheckAsked(const RankProfile& profile,
                        const SkeletalClass& skeletal, const ClassPlan& c) {
  if (skeletal.must_swap) return absl::OkStatus();
  auto [keep, swap] = skeletal.given;
  if (profile.alpha >= 0) {
    if (!keep) keep = 0;
    if (!swap) swap = std::min(profile.alpha, 1 - *keep);
  }
  if (keep && c.fractions.keep != *keep) {
    return Wrong("class '{}' keeps {}, asked for {}", c.name, c.fractions.keep,
                 *keep);
  }
  if (swap && c.fractions.swap != *swap) {
    return Wrong("class '{}' swaps {}, asked for {}", c.name, c.fractions.swap,
                 *swap);
  }
  return absl::OkStatus();
}

absl::Status CheckClass(const RankProfile& profile,
                        const SkeletalClass& skeletal, const ClassPlan& c) {
  for (const double fraction :
       {c.fractions.keep, c.fractions.swap, c.fractions.recompute}) {
    if (!(fraction >= 0 && fraction <= 1)) {
      return Wrong("class '{}' has a fraction {}, not in [0, 1]", c.name,
                   fraction);
    }
  }
  const double sum =
      c.fractions.keep + c.fractions.swap + c.fractions.recompute;
  if (std::fabs(sum - 1) > 1e-9) {
    return Wrong("class '{}' has fractions that sum to {}, not 1", c.name, sum);
  }
  if (skeletal.must_swap && c.fractions.swap != 1) {
    return Wrong("class '{}' must be swapped whole, the plan says {}", c.name,
                 c.fractions.swap);
  }
  if (c.fractions.keep > 0 && !skeletal.can_keep) {
    return Wrong("class '{}' keeps {}, the runtime cannot keep it", c.name,
                 c.fractions.keep);
  }
  return CheckAsked(profile, skeletal, c);
}

// Alpha is the swapped share of the free classes' bytes.
absl::Status CheckAlpha(const RankProfile& profile, const RankPlan& plan) {
  double swapped = 0, free = 0;
  for (const SkeletalClass& skeletal : profile.classes) {
    if (skeletal.must_swap) continue;
    int count = 0;
    const ClassPlan* c = FindOnce(plan.classes, skeletal.name, &count);
    const auto bytes = static_cast<double>(skeletal.bytes_per_layer.count());
    free += bytes;
    swapped += c->fractions.swap * bytes;
  }
  const double share = free > 0 ? swapped / free : plan.alpha;
  if (std::fabs(share - plan.alpha) > 1e-9) {
    return Wrong("alpha is {}, the classes swap {} of their bytes", plan.alpha,
                 share);
  }
  return absl::OkStatus();
}

// Bytes of one layer that stay in host memory, of those what is copied because
// of it, and what stays on the GPU.
struct Swapped {
  double held = 0;
  double copied = 0;
  double kept = 0;
};

Swapped SwappedOf(const RankProfile& profile, const RankPlan& plan) {
  Swapped sum;
  for (const SkeletalClass& skeletal : profile.classes) {
    for (const ClassPlan& c : plan.classes) {
      if (c.name != skeletal.name) continue;
      const auto all = static_cast<double>(skeletal.bytes_per_layer.count());
      sum.held += c.fractions.swap * all;
      sum.kept += c.fractions.keep * all;
      if (!skeletal.traffic_in_fixed) sum.copied += c.fractions.swap * all;
    }
  }
  return sum;
}

absl::Status CheckHostBytes(const RankProfile& profile, const RankPlan& plan) {
  const double layers =
      static_cast<double>(profile.layers - profile.resident_layers);
  const double need = layers * SwappedOf(profile, plan).held +
                      static_cast<double>(profile.host_fixed.count());
  if (static_cast<double>(plan.host_bytes.count()) < need * (1 - 1e-12) - 1) {
    return Wrong("host_bytes is {}, the classes need {:.0f}",
                 plan.host_bytes.count(), need);
  }
  return absl::OkStatus();
}

// Transient buffers and kept rows within the lease, nothing kept where it is
// not told; a settled profile has counted its kept rows already.
absl::Status CheckGpu(const RankProfile& profile, const RankPlan& plan) {
  const Bytes capacity = profile.transient_capacity;
  const bool told = capacity > Bytes(0);
  if (told && plan.transient_peak > capacity) {
    return Wrong("needs {} transient bytes, its lease has {}",
                 plan.transient_peak.count(), capacity.count());
  }
  if (profile.settled) return absl::OkStatus();
  const double layers =
      static_cast<double>(profile.layers - profile.resident_layers);
  const double kept = layers * SwappedOf(profile, plan).kept;
  const Bytes room =
      std::max(capacity - plan.transient_peak - profile.keep_reserve, Bytes(0));
  if (kept <= static_cast<double>(room.count()) + (told ? 1 : 0)) {
    return absl::OkStatus();
  }
  return Wrong(
      "keeps {:.0f} bytes beside {} transient ones and {} in reserve, its "
      "lease has {}",
      kept, plan.transient_peak.count(), profile.keep_reserve.count(),
      capacity.count());
}

// Ranks of a job that share a class's fractions.
absl::Status CheckShared(const std::vector<RankProfile>& profiles,
                         const NodePlan& plan) {
  std::map<std::pair<int64_t, std::string>, TokenFractions> first;
  for (const RankProfile& profile : profiles) {
    const RankPlan& rank = *PartOf(plan, profile);
    for (const SkeletalClass& skeletal : profile.classes) {
      if (!skeletal.shared) continue;
      int count = 0;
      const ClassPlan* c = FindOnce(rank.classes, skeletal.name, &count);
      const auto [at, added] = first.emplace(
          std::make_pair(profile.job, skeletal.name), c->fractions);
      if (added || (at->second.keep == c->fractions.keep &&
                    at->second.swap == c->fractions.swap)) {
        continue;
      }
      return Wrong("class '{}' swaps {} on rank {}, {} on another rank",
                   c->name, c->fractions.swap, profile.rank.value(),
                   at->second.swap);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHost(const std::vector<RankProfile>& profiles,
                       const HostLimit& host, const NodePlan& plan) {
  Bytes used;
  for (const size_t at : host.profiles) {
    used += PartOf(plan, profiles[at])->host_bytes;
  }
  if (used > host.bytes) {
    return Wrong("{} bytes of the {}, which has {}", used.count(), host.name,
                 host.bytes.count());
  }
  return absl::OkStatus();
}

double Rate(double bytes, double seconds) {
  if (bytes <= 0) return 0;
  return seconds > 0 ? bytes / seconds : HUGE_VAL;
}

// Bytes a second a rank moves, the worse of its two passes, when it swaps
// `moved` bytes per layer.
struct Rates {
  double d2h = 0;
  double h2d = 0;
};

Rates RatesOf(const RankProfile& p, double moved) {
  const auto rate = [](Bytes fixed, double more, double seconds) {
    return Rate(static_cast<double>(fixed.count()) + more, seconds);
  };
  const double forward = p.forward_layer_seconds;
  const double backward = p.backward_layer_seconds;
  return {.d2h = std::max(rate(p.forward_d2h_fixed, moved, forward),
                          rate(p.backward_d2h_fixed, 0, backward)),
          .h2d = std::max(rate(p.forward_h2d_fixed, 0, forward),
                          rate(p.backward_h2d_fixed, moved, backward))};
}

// What the rank moves where the planner chose the least: of what it is free
// to choose nothing.
double LeastCopied(const RankProfile& p) {
  double least = 0;
  for (const SkeletalClass& skeletal : p.classes) {
    if (skeletal.traffic_in_fixed) continue;
    const double swap =
        skeletal.must_swap
            ? 1
            : skeletal.given.swap.value_or(std::max(p.alpha, 0.0));
    least += swap * static_cast<double>(skeletal.bytes_per_layer.count());
  }
  return least;
}

// A link that what must be copied overloads already is no limit: those copies
// do not hide, whatever is chosen; but nothing may be added.
absl::Status CheckLink(const std::vector<RankProfile>& profiles,
                       const LinkCapacity& link, const NodePlan& plan) {
  Rates used;
  Rates least;
  for (const size_t at : link.profiles) {
    const RankProfile& p = profiles[at];
    const Rates at_plan = RatesOf(p, SwappedOf(p, *PartOf(plan, p)).copied);
    const Rates at_least = RatesOf(p, LeastCopied(p));
    used.d2h += at_plan.d2h, used.h2d += at_plan.h2d;
    least.d2h += at_least.d2h, least.h2d += at_least.h2d;
  }
  const auto check = [&](double use, double floor, double capacity,
                         const char* where) {
    if (use <= std::max(floor, capacity) * (1 + kTolerance)) {
      return absl::OkStatus();
    }
    return Wrong("link '{}' moves {:.6g} bytes/s to the {}, it has {:.6g}",
                 link.name, use, where, capacity);
  };
  SLUICE_RETURN_IF_ERROR(
      check(used.d2h, least.d2h, link.d2h_bytes_per_second, "host"));
  return check(used.h2d, least.h2d, link.h2d_bytes_per_second, "GPUs");
}

// All pairs, straight from the definition.
absl::Status CheckAllPairs(const Trace& trace, const Placement& placement) {
  for (size_t i = 0; i < trace.buffers.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (absl::Status s = CheckPair(trace, placement, j, i); !s.ok()) {
        return s;
      }
    }
  }
  return absl::OkStatus();
}

// Plays the trace: a buffer that is born must not meet its neighbours among
// those that lie in memory then. The first pair that overlaps is found when
// the later of them is born.
absl::Status CheckByPlaying(const Trace& trace, const Placement& placement) {
  std::vector<std::tuple<int64_t, bool, size_t>> events;  // deaths first
  for (size_t k = 0; k < trace.buffers.size(); ++k) {
    const Buffer& b = trace.buffers[k];
    if (b.size == Bytes(0) || b.lower >= b.upper) continue;
    events.emplace_back(b.lower, true, k);
    events.emplace_back(b.upper, false, k);
  }
  std::sort(events.begin(), events.end());
  std::map<Bytes, size_t> lying;  // by offset
  for (const auto& [time, born, k] : events) {
    const Bytes offset = placement.offsets[k];
    if (!born) {
      lying.erase(offset);
      continue;
    }
    const auto [at, added] = lying.emplace(offset, k);
    if (!added) return CheckPair(trace, placement, at->second, k);
    if (at != lying.begin()) {
      absl::Status s = CheckPair(trace, placement, std::prev(at)->second, k);
      if (!s.ok()) return s;
    }
    if (std::next(at) != lying.end()) {
      absl::Status s = CheckPair(trace, placement, std::next(at)->second, k);
      if (!s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace

const RankPlan* PartOf(const NodePlan& plan, int64_t job, Rank rank) {
  for (const RankPlan& part : plan.ranks) {
    if (part.job == job && part.rank == rank) return &part;
  }
  return nullptr;
}

const RankPlan* PartOf(const NodePlan& plan, const RankProfile& profile) {
  return PartOf(plan, profile.job, profile.rank);
}

absl::Status ValidatePlacement(const Trace& trace, const Placement& placement) {
  const size_t n = trace.buffers.size();
  if (placement.offsets.size() != n) {
    return Wrong("{} offsets for {} buffers", placement.offsets.size(), n);
  }
  if (placement.peak < placement.lower_bound) {
    return Wrong("peak {} below its own lower bound {}", placement.peak.count(),
                 placement.lower_bound.count());
  }
  for (size_t k = 0; k < n; ++k) {
    if (absl::Status s = CheckBuffer(trace, placement, k); !s.ok()) return s;
  }
  return n <= kMostInPairs ? CheckAllPairs(trace, placement)
                           : CheckByPlaying(trace, placement);
}

absl::Status ValidateRankPlan(const RankProfile& profile,
                              const RankPlan& plan) {
  if (plan.job != profile.job || plan.rank != profile.rank) {
    return Wrong("a plan of rank {} of job {} for rank {} of job {}",
                 plan.rank.value(), plan.job, profile.rank.value(),
                 profile.job);
  }
  SLUICE_RETURN_IF_ERROR(CheckSegments(profile, plan));
  if (plan.classes.size() != profile.classes.size()) {
    return Wrong("{} classes planned, {} profiled", plan.classes.size(),
                 profile.classes.size());
  }
  for (const SkeletalClass& skeletal : profile.classes) {
    int count = 0;
    const ClassPlan* c = FindOnce(plan.classes, skeletal.name, &count);
    if (count != 1) {
      return Wrong("class '{}' planned {} times", skeletal.name, count);
    }
    SLUICE_RETURN_IF_ERROR(CheckClass(profile, skeletal, *c));
  }
  SLUICE_RETURN_IF_ERROR(CheckAlpha(profile, plan));
  return CheckHostBytes(profile, plan);
}

absl::Status ValidateNodePlan(const std::vector<RankProfile>& profiles,
                              const NodeResources& resources,
                              const NodePlan& plan) {
  if (!plan.infeasible.empty()) return absl::OkStatus();
  if (plan.ranks.size() != profiles.size()) {
    return Wrong("{} ranks planned, {} profiled", plan.ranks.size(),
                 profiles.size());
  }
  for (const RankProfile& profile : profiles) {
    const RankPlan* found = PartOf(plan, profile);
    const std::string name = fmt::format("rank {}", profile.rank.value());
    if (found == nullptr) return Wrong("{} is not planned", name);
    absl::Status status = ValidateRankPlan(profile, *found);
    if (status.ok()) status = CheckGpu(profile, *found);
    if (!status.ok()) return Annotate(status, name);
  }
  SLUICE_RETURN_IF_ERROR(CheckShared(profiles, plan));
  for (const HostLimit& host : resources.hosts) {
    SLUICE_RETURN_IF_ERROR(CheckHost(profiles, host, plan));
  }
  for (const LinkCapacity& link : resources.links) {
    SLUICE_RETURN_IF_ERROR(CheckLink(profiles, link, plan));
  }
  return absl::OkStatus();
}

}  // namespace sluice::plan
