#include "proto/plan/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "proto/base/status.h"

namespace sluice::plan {
namespace {

// Larger traces are not compared in pairs: 70,000 buffers would take seconds.
constexpr size_t kMostInPairs = 2000;

constexpr double kTolerance = 1e-6;  // relative, of measured rates
constexpr double kRounded = 1e-5;    // a plan's limits have six digits

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

absl::Status CheckPair(const Trace& trace, const Placement& placement, size_t i,
                       size_t j) {
  const Buffer& a = trace.buffers[i];
  const Buffer& b = trace.buffers[j];
  const Bytes at_a = placement.offsets[i];
  const Bytes at_b = placement.offsets[j];
  const bool live_together = a.lower < b.upper && b.lower < a.upper;
  const bool share = at_a < at_b + b.size && at_b < at_a + a.size &&
                     a.size > Bytes(0) && b.size > Bytes(0);
  if (!live_together || !share) return absl::OkStatus();
  return Wrong(
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

// Replays the trace, and compares each new buffer with its two neighbours among
// the live buffers. That suffices, because live buffers do not overlap.
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

auto PlannedAs(const SkeletalClass& skeletal) {
  return [&skeletal](const ClassPlan& c) {
    return c.name == skeletal.name && c.kind == skeletal.kind;
  };
}

// REQUIRES: the class is planned.
const ClassPlan& ClassOf(const RankPlan& plan, const SkeletalClass& skeletal) {
  return *std::ranges::find_if(plan.classes, PlannedAs(skeletal));
}

absl::Status CheckSegments(const RankProfile& profile, const RankPlan& plan) {
  if (plan.segments.size() != profile.segments.size()) {
    return Wrong("{} segments planned, {} profiled", plan.segments.size(),
                 profile.segments.size());
  }
  for (const SegmentKind& kind : profile.segments) {
    const auto count =
        std::ranges::count(plan.segments, kind.name, &SegmentPlan::name);
    if (count != 1) {
      return Wrong("segment '{}' planned {} times", kind.name, count);
    }
    const SegmentPlan& segment =
        *std::ranges::find(plan.segments, kind.name, &SegmentPlan::name);
    if (absl::Status s = ValidatePlacement(kind.trace, segment.placement);
        !s.ok()) {
      return Annotate(s, fmt::format("segment '{}'", kind.name));
    }
    if (segment.base < Bytes(0) ||
        segment.base.count() % kind.trace.alignment.count() != 0) {
      return Wrong("segment '{}' has base {}, no multiple of {}", kind.name,
                   segment.base.count(), kind.trace.alignment.count());
    }
    const Bytes end = segment.base + segment.placement.peak;
    if (end > plan.transient_peak) {
      return Wrong("segment '{}' ends at {}, above the region's {}", kind.name,
                   end.count(), plan.transient_peak.count());
    }
  }
  return absl::OkStatus();
}

// Checks the fractions that the class, or the rank by its alpha, requests.
absl::Status CheckAsked(const RankProfile& profile,
                        const SkeletalClass& skeletal, const ClassPlan& c) {
  if (skeletal.must_swap) return absl::OkStatus();
  auto [keep, swap] = skeletal.given;
  if (profile.alpha >= 0) {
    if (!keep) keep = 0;
    if (!swap) swap = std::min(profile.alpha, 1 - *keep);
  }
  if (keep && c.fractions.keep != *keep) {
    return Wrong("class '{}' keeps {}, asked for {}", FullName(c.kind, c.name),
                 c.fractions.keep, *keep);
  }
  if (swap && c.fractions.swap != *swap) {
    return Wrong("class '{}' swaps {}, asked for {}", FullName(c.kind, c.name),
                 c.fractions.swap, *swap);
  }
  return absl::OkStatus();
}

absl::Status CheckClass(const RankProfile& profile,
                        const SkeletalClass& skeletal, const ClassPlan& c) {
  for (const double fraction :
       {c.fractions.keep, c.fractions.swap, c.fractions.recompute}) {
    if (!(fraction >= 0 && fraction <= 1)) {
      return Wrong("class '{}' has a fraction {}, not in [0, 1]",
                   FullName(c.kind, c.name), fraction);
    }
  }
  const double sum =
      c.fractions.keep + c.fractions.swap + c.fractions.recompute;
  if (std::fabs(sum - 1) > 1e-9) {
    return Wrong("class '{}' has fractions that sum to {}, not 1",
                 FullName(c.kind, c.name), sum);
  }
  if (skeletal.must_swap && c.fractions.swap != 1) {
    return Wrong("class '{}' must be swapped whole, the plan says {}",
                 FullName(c.kind, c.name), c.fractions.swap);
  }
  if (c.fractions.keep > 0 && !skeletal.can_keep) {
    return Wrong("class '{}' keeps {}, the runtime cannot keep it",
                 FullName(c.kind, c.name), c.fractions.keep);
  }
  return CheckAsked(profile, skeletal, c);
}

absl::Status CheckAlpha(const RankProfile& profile, const RankPlan& plan) {
  double swapped = 0, free = 0;
  for (const SkeletalClass& skeletal : profile.classes) {
    if (skeletal.must_swap) continue;
    const auto bytes = static_cast<double>(KindOf(profile, skeletal).layers) *
                       static_cast<double>(skeletal.bytes_per_layer.count());
    free += bytes;
    swapped += ClassOf(plan, skeletal).fractions.swap * bytes;
  }
  const double share = free > 0 ? swapped / free : plan.alpha;
  if (std::fabs(share - plan.alpha) > 1e-9) {
    return Wrong("alpha is {}, the classes swap {} of their bytes", plan.alpha,
                 share);
  }
  return absl::OkStatus();
}

// The bytes that a rank holds for all its layers.
struct Held {
  double host = 0;
  double gpu = 0;
};

Held HeldOf(const RankProfile& profile, const RankPlan& plan) {
  Held sum;
  for (const SkeletalClass& skeletal : profile.classes) {
    const TokenFractions& fractions = ClassOf(plan, skeletal).fractions;
    const double all =
        static_cast<double>(KindOf(profile, skeletal).moving_layers()) *
        static_cast<double>(skeletal.bytes_per_layer.count());
    sum.host += fractions.swap * all;
    sum.gpu += fractions.keep * all;
  }
  return sum;
}

absl::Status CheckHostBytes(const RankProfile& profile, const RankPlan& plan) {
  const double need = HeldOf(profile, plan).host +
                      static_cast<double>(profile.host_fixed.count());
  if (static_cast<double>(plan.host_bytes.count()) < need * (1 - 1e-12) - 1) {
    return Wrong("host_bytes is {}, the classes need {:.0f}",
                 plan.host_bytes.count(), need);
  }
  return absl::OkStatus();
}

// Checks that transient buffers and kept rows fit into the lease, and that
// nothing is kept if the lease's size is unknown. A settled profile's capacity
// already excludes its kept rows.
absl::Status CheckGpu(const RankProfile& profile, const RankPlan& plan) {
  const Bytes capacity = profile.transient_capacity;
  const bool told = capacity > Bytes(0);
  if (told && plan.transient_peak > capacity) {
    return Wrong("needs {} transient bytes, its lease has {}",
                 plan.transient_peak.count(), capacity.count());
  }
  if (profile.settled) return absl::OkStatus();
  const double kept = HeldOf(profile, plan).gpu;
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

absl::Status CheckShared(const std::vector<RankProfile>& profiles,
                         const NodePlan& plan) {
  std::map<std::tuple<int64_t, std::string, std::string>, TokenFractions> first;
  for (const RankProfile& profile : profiles) {
    const RankPlan& rank = *PartOf(plan, profile);
    for (const SkeletalClass& skeletal : profile.classes) {
      if (!skeletal.shared) continue;
      const TokenFractions& own = ClassOf(rank, skeletal).fractions;
      const auto [at, added] = first.emplace(
          std::make_tuple(profile.job, skeletal.kind, skeletal.name), own);
      if (added ||
          (at->second.keep == own.keep && at->second.swap == own.swap)) {
        continue;
      }
      return Wrong("class '{}' swaps {} on rank {}, {} on another rank",
                   FullName(skeletal.kind, skeletal.name), own.swap,
                   profile.rank.value(), at->second.swap);
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

// Bytes per second that a layer copies. Each rate is that of the pass (forward
// or backward) with the higher rate.
struct Rates {
  double d2h = 0;
  double h2d = 0;
  double both = 0;  // both directions together
};

// Returns the rates of a layer that swaps `copied` bytes.
Rates RatesOf(const LayerKind& k, double copied) {
  const auto rate = [](Bytes fixed, double more, double seconds) {
    return Rate(static_cast<double>(fixed.count()) + more, seconds);
  };
  const double forward = k.forward_layer_seconds;
  const double backward = k.backward_layer_seconds;
  return {
      .d2h = std::max(rate(k.forward_d2h_fixed, copied, forward),
                      rate(k.backward_d2h_fixed, 0, backward)),
      .h2d = std::max(rate(k.forward_h2d_fixed, 0, forward),
                      rate(k.backward_h2d_fixed, copied, backward)),
      .both = std::max(
          rate(k.forward_d2h_fixed + k.forward_h2d_fixed, copied, forward),
          rate(k.backward_d2h_fixed + k.backward_h2d_fixed, copied, backward))};
}

// Returns the smallest fraction of the class that a valid plan can swap.
double LeastSwapped(const RankProfile& p, const SkeletalClass& c) {
  if (c.must_swap) return 1;
  return c.given.swap.value_or(std::max(p.alpha, 0.0));
}

// The rates of a plan, and the least rates that any plan can have.
struct KindRates {
  std::vector<Rates> used, least;  // by kind
};

KindRates RatesOf(const RankProfile& p, const RankPlan& plan) {
  KindRates rates;
  for (const LayerKind& kind : p.kinds) {
    double copied = 0, least = 0;
    for (const SkeletalClass& c : p.classes) {
      if (c.kind != kind.name || c.traffic_in_fixed) continue;
      const auto all = static_cast<double>(c.bytes_per_layer.count());
      copied += ClassOf(plan, c).fractions.swap * all;
      least += LeastSwapped(p, c) * all;
    }
    rates.used.push_back(RatesOf(kind, copied));
    rates.least.push_back(RatesOf(kind, least));
  }
  return rates;
}

double Most(const std::vector<Rates>& kinds, double Rates::*way) {
  double most = 0;
  for (const Rates& rates : kinds) most = std::max(most, rates.*way);
  return most;
}

// Returns the rate that the plan's limits state for `row` ("link pcie0 d2h"),
// or 0 if they state none. A rate above the link's capacity means that the plan
// accepts copies that delay compute.
double Overload(const NodePlan& plan, const std::string& row) {
  for (const PlanLimit& limit : plan.limits) {
    if (limit.what == row) return limit.used * (1 + kRounded);
  }
  return 0;
}

// Checks one direction of a link: whatever kinds of layers the ranks run at the
// same time, their copies must not exceed `capacity` (the link's, or the rate
// that the plan states if that is larger). Copies that no plan can avoid may
// exceed `capacity`.
absl::Status CheckWay(const std::vector<KindRates>& ranks, double Rates::*way,
                      double capacity, const std::string& link,
                      const char* where) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    double others = 0, others_least = 0;
    for (size_t other = 0; other < ranks.size(); ++other) {
      if (other == r) continue;
      others += Most(ranks[other].used, way);
      others_least += Most(ranks[other].least, way);
    }
    for (size_t k = 0; k < ranks[r].used.size(); ++k) {
      const double use = ranks[r].used[k].*way + others;
      const double least = ranks[r].least[k].*way + others_least;
      if (use <= std::max(least, capacity) * (1 + kTolerance)) continue;
      return Wrong("link '{}' moves {:.6g} bytes/s {}, it has {:.6g}", link,
                   use, where, capacity);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLink(const std::vector<RankProfile>& profiles,
                       const LinkCapacity& link, const NodePlan& plan) {
  std::vector<KindRates> ranks;
  for (const size_t at : link.profiles) {
    const RankProfile& p = profiles[at];
    ranks.push_back(RatesOf(p, *PartOf(plan, p)));
  }
  const auto most = [&](double capacity, const char* way) {
    return std::max(capacity,
                    Overload(plan, fmt::format("link {} {}", link.name, way)));
  };
  SLUICE_RETURN_IF_ERROR(CheckWay(ranks, &Rates::d2h,
                                  most(link.d2h_bytes_per_second, "d2h"),
                                  link.name, "to the host"));
  SLUICE_RETURN_IF_ERROR(CheckWay(ranks, &Rates::h2d,
                                  most(link.h2d_bytes_per_second, "h2d"),
                                  link.name, "to the GPUs"));
  return CheckWay(ranks, &Rates::both,
                  most(link.both_bytes_per_second.value_or(HUGE_VAL), "total"),
                  link.name, "both ways");
}

}  // namespace

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
    SLUICE_RETURN_IF_ERROR(CheckBuffer(trace, placement, k));
  }
  return n <= kMostInPairs ? CheckAllPairs(trace, placement)
                           : CheckByPlaying(trace, placement);
}

const RankPlan* PartOf(const NodePlan& plan, int64_t job, Rank rank) {
  for (const RankPlan& part : plan.ranks) {
    if (part.job == job && part.rank == rank) return &part;
  }
  return nullptr;
}

const RankPlan* PartOf(const NodePlan& plan, const RankProfile& profile) {
  return PartOf(plan, profile.job, profile.rank);
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
    const auto count = std::ranges::count_if(plan.classes, PlannedAs(skeletal));
    if (count != 1) {
      return Wrong("class '{}' planned {} times",
                   FullName(skeletal.kind, skeletal.name), count);
    }
    SLUICE_RETURN_IF_ERROR(
        CheckClass(profile, skeletal, ClassOf(plan, skeletal)));
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
