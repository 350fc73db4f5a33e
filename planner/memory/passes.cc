#include "planner/memory/passes.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "proto/base/status.h"

namespace sluice::planner {
namespace {

// Sorted by time, with frees before allocations on ties, because lifetimes are
// half-open.
struct Request {
  int64_t time = 0;
  bool allocates = false;
  uint32_t buffer = 0;
  auto operator<=>(const Request&) const = default;
};

std::vector<Request> RequestsOf(const plan::Trace& trace) {
  std::vector<Request> requests;
  requests.reserve(2 * trace.buffers.size());
  for (uint32_t k = 0; k < trace.buffers.size(); ++k) {
    requests.push_back({trace.buffers[k].lower, true, k});
    requests.push_back({trace.buffers[k].upper, false, k});
  }
  std::sort(requests.begin(), requests.end());
  return requests;
}

// Tokens distinguish lifetimes of up to this many requests, because a buffer
// that lives longer may outlive its pass.
constexpr uint32_t kNear = 32;
constexpr size_t kLeastPeriod = 8;   // a shorter pass gains nothing
constexpr size_t kMostPeriods = 24;  // candidates that are examined
constexpr size_t kMostRuns = 64;

class Detector {
 public:
  explicit Detector(const plan::Trace& trace)
      : trace_(trace), requests_(RequestsOf(trace)) {}

  std::vector<Pass> Detect(const std::function<bool()>& stopped) {
    if (!Tokenize(stopped)) return {};
    std::vector<Run> runs;
    for (const size_t period : Periods()) FindRuns(period, &runs);
    // Longer runs come first and, among runs of equal length, shorter periods,
    // because planning a shorter period takes less time.
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
      return std::make_tuple(b.Length(), a.period, a.begin) <
             std::make_tuple(a.Length(), b.period, b.begin);
    });
    std::vector<Run> taken;
    std::vector<Pass> passes;
    for (const Run& run : runs) {
      const bool free =
          std::none_of(taken.begin(), taken.end(), [&](const Run& other) {
            return run.begin < other.end && other.begin < run.end;
          });
      if (!free || taken.size() == kMostRuns) continue;
      if (AddPasses(run, &passes)) taken.push_back(run);
    }
    std::ranges::sort(passes, {}, &Pass::lower);
    return passes;
  }

 private:
  // The requests [begin, end). Each request before index end - period equals
  // the request `period` places after it.
  struct Run {
    size_t begin = 0, end = 0, period = 0;
    size_t Length() const { return end - begin; }
  };

  // Gives equal tokens to requests of equal kind (allocation or free), size
  // and, up to kNear, lifetime. Returns false if `stopped` returned true.
  bool Tokenize(const std::function<bool()>& stopped) {
    std::vector<uint32_t> born(trace_.buffers.size());
    std::vector<uint32_t> life(trace_.buffers.size());
    for (uint32_t k = 0; k < requests_.size(); ++k) {
      const Request& r = requests_[k];
      if (r.allocates) {
        born[r.buffer] = k;
      } else {
        life[r.buffer] = k - born[r.buffer];
      }
    }
    std::map<std::tuple<bool, int64_t, uint32_t>, uint32_t> known;
    tokens_.reserve(requests_.size());
    lives_.reserve(requests_.size());
    for (const Request& r : requests_) {
      if (lives_.size() % 4096 == 0 && stopped()) return false;
      const int64_t size = trace_.buffers[r.buffer].size.count();
      const auto number = static_cast<uint32_t>(known.size());
      const std::tuple key(r.allocates, size, std::min(life[r.buffer], kNear));
      tokens_.push_back(known.try_emplace(key, number).first->second);
      lives_.push_back(life[r.buffer]);
    }
    return true;
  }

  // Two lifetimes match if they are equal, or if both outlast the period.
  bool Same(size_t k, size_t period) const {
    return tokens_[k] == tokens_[k + period] &&
           (lives_[k] == lives_[k + period] ||
            (lives_[k] >= period && lives_[k + period] >= period));
  }

  // Returns the most frequent distances from a token to its next occurrence.
  std::vector<size_t> Periods() const {
    std::unordered_map<uint32_t, size_t> last;
    std::unordered_map<size_t, size_t> count;
    for (size_t k = 0; k < tokens_.size(); ++k) {
      const auto [at, first] = last.try_emplace(tokens_[k], k);
      if (first) continue;
      const size_t distance = k - std::exchange(at->second, k);
      if (distance >= kLeastPeriod) ++count[distance];
    }
    std::vector<std::pair<size_t, size_t>> ranked;  // score, period
    for (const auto& [period, times] : count) {
      // A token counts once per period, so counts are weighted by the period.
      ranked.push_back({times * period, period});
    }
    std::sort(ranked.rbegin(), ranked.rend());
    std::vector<size_t> periods;
    for (const auto& [score, period] : ranked) {
      if (periods.size() == kMostPeriods) break;
      periods.push_back(period);
    }
    return periods;
  }

  void FindRuns(size_t period, std::vector<Run>* runs) const {
    size_t begin = 0;
    for (size_t k = 0; k + period <= tokens_.size(); ++k) {
      if (k + period < tokens_.size() && Same(k, period)) continue;
      // Requests [begin, k) equal those one period later, so the run with its
      // last repetition is [begin, k + period).
      if (k >= begin + period) runs->push_back({begin, k + period, period});
      begin = k + 1;
    }
  }

  // Cuts the run into passes at the phase with the least short-lived memory
  // across the cut. Returns false if it cannot be cut at any phase.
  bool AddPasses(const Run& run, std::vector<Pass>* passes) const {
    size_t best = SIZE_MAX;
    int64_t least = 0;
    int64_t alive = 0;  // short-lived bytes of this run before request k
    for (size_t k = run.begin; k <= run.end; ++k) {
      // `alive` is taken one period later than the cut, where it includes the
      // buffers of the run's first period.
      const size_t phase = k - run.period;
      if (k >= run.begin + run.period && run.end - phase >= 2 * run.period &&
          IsCut(phase) && (best == SIZE_MAX || alive < least)) {
        best = phase;
        least = alive;
      }
      if (k == run.end || k == run.begin + 2 * run.period) break;
      if (lives_[k] >= run.period) continue;
      const Request& r = requests_[k];
      const int64_t size = trace_.buffers[r.buffer].size.count();
      alive += r.allocates ? size : -size;
    }
    if (best == SIZE_MAX) return false;
    size_t from = best;
    for (size_t to = from + run.period; to <= run.end; to += run.period) {
      if (!IsCut(to)) continue;  // the longer span to the next cut is no pass
      if (to - from == run.period)
        passes->push_back({TimeOf(from), TimeOf(to)});
      from = to;
    }
    return true;
  }

  // Returns whether time passes between requests k - 1 and k.
  bool IsCut(size_t k) const {
    return k == 0 || k == requests_.size() ||
           requests_[k - 1].time < requests_[k].time;
  }
  int64_t TimeOf(size_t k) const {
    return k < requests_.size() ? requests_[k].time : requests_[k - 1].time;
  }

  const plan::Trace& trace_;
  const std::vector<Request> requests_;
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> lives_;  // by request: its buffer's lifetime
};

// ---- Two levels ------------------------------------------------------------

constexpr size_t kCrosses = SIZE_MAX;

// Returns the pass in which each buffer lives and dies, or kCrosses.
std::vector<size_t> PassOf(const plan::Trace& trace,
                           const std::vector<Pass>& passes) {
  std::vector<size_t> pass(trace.buffers.size(), kCrosses);
  for (size_t k = 0; k < trace.buffers.size(); ++k) {
    const plan::Buffer& b = trace.buffers[k];
    const auto after = std::upper_bound(
        passes.begin(), passes.end(), b.lower,
        [](int64_t time, const Pass& p) { return time < p.lower; });
    if (after == passes.begin()) continue;
    const auto at = std::prev(after);
    if (b.upper <= at->upper) {
      pass[k] = static_cast<size_t>(at - passes.begin());
    }
  }
  return pass;
}

// A pass's own trace, with times from 0, and its buffers in the whole trace.
struct Unit {
  plan::Trace trace;
  std::vector<size_t> buffers;
};

std::vector<Unit> UnitsOf(const plan::Trace& trace,
                          const std::vector<Pass>& passes,
                          const std::vector<size_t>& pass) {
  std::vector<Unit> units(passes.size());
  for (size_t k = 0; k < trace.buffers.size(); ++k) {
    if (pass[k] == kCrosses) continue;
    Unit& unit = units[pass[k]];
    plan::Buffer b = trace.buffers[k];
    b.id = static_cast<int64_t>(unit.buffers.size());
    b.lower -= passes[pass[k]].lower;
    b.upper -= passes[pass[k]].lower;
    unit.trace.buffers.push_back(b);
    unit.buffers.push_back(k);
  }
  for (size_t p = 0; p < units.size(); ++p) {
    units[p].trace.end = passes[p].upper - passes[p].lower;
    units[p].trace.alignment = trace.alignment;
  }
  return units;
}

using Signature = std::vector<std::tuple<int64_t, int64_t, int64_t>>;

// Returns the key by which equal passes are planned once. The i-th buffers of
// two equal passes correspond.
Signature SignatureOf(const Unit& unit) {
  Signature signature;
  for (const plan::Buffer& b : unit.trace.buffers) {
    signature.emplace_back(b.lower, b.upper, b.size.count());
  }
  return signature;
}

// The plan of each pass; null if the pass is too small to be planned.
struct PassPlans {
  std::map<Signature, plan::Placement> known;  // `of` points to its values
  std::vector<const plan::Placement*> of;

  absl::Status Plan(const std::vector<Unit>& units, const FlatPlanner& flat) {
    of.assign(units.size(), nullptr);
    for (size_t p = 0; p < units.size(); ++p) {
      if (units[p].buffers.size() < 2) continue;
      const auto [at, first] = known.try_emplace(SignatureOf(units[p]));
      if (first) {
        SLUICE_ASSIGN_OR_RETURN(at->second, flat(units[p].trace));
      }
      of[p] = &at->second;
    }
    return absl::OkStatus();
  }
};

// Level 2's trace: the buffers outside planned passes, unchanged, and one
// pseudo request per planned pass.
struct UpperLevel {
  plan::Trace trace;
  std::vector<std::pair<size_t, size_t>> own;     // buffer, its index in trace
  std::vector<std::pair<size_t, size_t>> passes;  // pass, its index in trace

  size_t Add(int64_t lower, int64_t upper, Bytes size) {
    const size_t place = trace.buffers.size();
    trace.buffers.push_back({static_cast<int64_t>(place), lower, upper, size});
    return place;
  }
};

UpperLevel UpperLevelOf(const plan::Trace& trace,
                        const std::vector<Pass>& passes,
                        const std::vector<size_t>& pass,
                        const PassPlans& plans) {
  UpperLevel upper;
  upper.trace.end = trace.end;
  upper.trace.alignment = trace.alignment;
  for (size_t p = 0; p < passes.size(); ++p) {
    if (plans.of[p] == nullptr) continue;
    upper.passes.emplace_back(
        p, upper.Add(passes[p].lower, passes[p].upper, plans.of[p]->peak));
  }
  for (size_t k = 0; k < trace.buffers.size(); ++k) {
    if (pass[k] != kCrosses && plans.of[pass[k]] != nullptr) continue;
    const plan::Buffer& b = trace.buffers[k];
    upper.own.emplace_back(k, upper.Add(b.lower, b.upper, b.size));
  }
  return upper;
}

}  // namespace

std::vector<Pass> DetectPasses(const plan::Trace& trace,
                               const std::function<bool()>& stopped) {
  return Detector(trace).Detect(stopped);
}

size_t InPasses(const plan::Trace& trace, const std::vector<Pass>& passes) {
  const std::vector<size_t> pass = PassOf(trace, passes);
  return pass.size() -
         static_cast<size_t>(std::count(pass.begin(), pass.end(), kCrosses));
}

absl::StatusOr<std::optional<plan::Placement>> PlanByPasses(
    const plan::Trace& trace, const std::vector<Pass>& passes,
    const FlatPlanner& flat) {
  const std::vector<size_t> pass = PassOf(trace, passes);
  const std::vector<Unit> units = UnitsOf(trace, passes, pass);
  PassPlans plans;
  SLUICE_RETURN_IF_ERROR(plans.Plan(units, flat));
  if (plans.known.empty()) return std::nullopt;
  const UpperLevel upper = UpperLevelOf(trace, passes, pass, plans);
  SLUICE_ASSIGN_OR_RETURN(const plan::Placement top, flat(upper.trace));
  plan::Placement whole{.proved_by = "none", .method = top.method};
  whole.peak = top.peak;
  whole.offsets.resize(trace.buffers.size());
  for (const auto& [buffer, place] : upper.own) {
    whole.offsets[buffer] = top.offsets[place];
  }
  for (const auto& [p, place] : upper.passes) {
    for (size_t i = 0; i < units[p].buffers.size(); ++i) {
      whole.offsets[units[p].buffers[i]] =
          top.offsets[place] + plans.of[p]->offsets[i];
    }
  }
  return whole;
}

}  // namespace sluice::planner
