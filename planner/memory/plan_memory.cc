#include "planner/memory/plan_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "planner/memory/arms.h"
#include "planner/memory/greedy.h"
#include "planner/memory/mip_process.h"
#include "planner/memory/passes.h"
#include "planner/memory/problem.h"
#include "planner/memory/search.h"
#include "proto/base/status.h"
#include "proto/plan/validate.h"

namespace sluice::planner {
namespace {

// --- the arms, in order, each with a budget in counted work

// A problem's best placement so far and a lower bound.
struct Knowledge {
  Offsets offsets;
  int64_t peak = 0;
  int64_t bound = 0;
  std::string method;
  std::string proved_by = "max_live";

  bool Proved() const { return peak == bound; }
};

struct PortfolioOptions {
  const MemoryOptions& asked;
  absl::Time deadline;
  // The arms end at a plan with a peak of at most `goal`, which is >= max_live.
  int64_t goal = 0;
  // Whether the arms only look for plans that meet the goal.
  bool goal_is_capacity = false;
  std::function<void(const std::string& arm, const Knowledge&)> progress;

  bool Stopped() const { return asked.stop != nullptr && asked.stop->load(); }
  bool Expired() const { return Stopped() || absl::Now() >= deadline; }
};

// Budgets of the search in nodes. A node takes 0.5 to 1 microsecond.
constexpr int64_t kQuickNodes = 100'000;
constexpr int64_t kSearchNodes = 4'000'000;
constexpr int64_t kCoarseNodes = 60'000;
constexpr int64_t kCapacityNodes = 6'000'000;
// The time per node grows with the number of pairs of items that live together,
// so problems of more than kFullSearchItems items get fewer nodes.
constexpr size_t kMaxSearchItems = 4000;
constexpr int64_t kFullSearchItems = 600;

int64_t NodesFor(size_t items, int64_t nodes) {
  const auto n = static_cast<int64_t>(items);
  if (n <= kFullSearchItems) return nodes;
  return nodes * kFullSearchItems / n * kFullSearchItems / n;
}

// Problems of kMinSweepItems items or more are swept before the race, which may
// not end in time. Problems of more than kMaxRacedItems are raced only if the
// sweep leaves a gap of at least kRacedGap, because the race would use up the
// time of ejection.
constexpr size_t kMinSweepItems = 20'000;
constexpr size_t kMaxRacedItems = 100'000;
constexpr double kRacedGap = 0.02;

constexpr size_t kMinWindowItems = 300;
// Budgets of ejection in visits. A visit takes half a nanosecond. The larger a
// problem that is raced, the longer the race takes, and the fewer visits
// ejection gets.
constexpr size_t kMinEjectionItems = 1000;
constexpr int64_t kEjectionVisits = 12'000'000'000;
constexpr int64_t kEjectionVisitsAnItem = 1'000'000;
constexpr int64_t kLeastEjectionVisits = 4'000'000'000;

int64_t EjectionVisits(size_t items) {
  const auto n = static_cast<int64_t>(items);
  if (items > kMaxRacedItems) return kEjectionVisits;
  return std::min(
      n * kEjectionVisitsAnItem,
      std::max(kEjectionVisits - 3 * n * (n / 2), kLeastEjectionVisits));
}

// CBC rarely proves anything about larger problems in the time that it gets.
constexpr size_t kMaxCbcItems = 60;

class PieceSolver {
 public:
  PieceSolver(const Problem& problem, int64_t goal,
              const PortfolioOptions& options, Knowledge known)
      : problem_(problem),
        goal_(goal),
        options_(options),
        known_(std::move(known)),
        expired_([&options] { return options.Expired(); }) {}

  Knowledge Run() {
    const size_t n = problem_.items.size();
    const bool small = options_.asked.use_search && n <= kMaxSearchItems;
    const bool large = options_.asked.use_search && n >= kMinEjectionItems;
    if (small && Open()) restarts_ = std::make_unique<Restarts>(problem_);
    if (small && Open()) Ask("search", goal_, NodesFor(n, kQuickNodes));
    if (options_.asked.use_search && Open() && n >= kMinWindowItems) Window();
    if (large && Open()) Eject(1);
    if (small && Open()) Search();
    if (options_.asked.use_cbc && Open() && n <= kMaxCbcItems) Cbc();
    if (options_.asked.effort > 1) {
      const int64_t nodes = NodesFor(n, kCapacityNodes);
      if (small) Descend(nodes, nodes * (options_.asked.effort - 1));
      if (large && Open()) Eject(options_.asked.effort);
    }
    return std::move(known_);
  }

 private:
  bool Open() const {
    return known_.peak > std::max(goal_, known_.bound) &&
           !(options_.goal_is_capacity && known_.bound > goal_) &&
           !options_.Expired();
  }

  void Begin(const std::string& arm) const { options_.progress(arm, known_); }

  void Adopt(Offsets offsets, std::string method) {
    const int64_t peak = PeakOf(problem_, offsets);
    if (peak >= known_.peak) return;
    known_.peak = peak;
    known_.offsets = std::move(offsets);
    known_.method = std::move(method);
  }

  void Raise(int64_t bound, const char* proved_by) {
    if (bound <= known_.bound) return;
    known_.bound = bound;
    known_.proved_by = proved_by;
  }

  SearchResult Ask(const char* arm, int64_t target, int64_t nodes) {
    Begin(arm);
    SearchResult result = restarts_->Ask(target, nodes, expired_);
    if (result.verdict == Verdict::kFits) {
      Adopt(result.offsets, "search:" + result.order);
    } else if (result.verdict == Verdict::kImpossible) {
      Raise(target + 1, "search");  // smaller capacities are impossible too
    }
    return result;
  }

  void Window() {
    Begin("window");
    auto offsets = SolveWindow(problem_, known_.peak,
                               std::max(goal_, known_.bound), expired_);
    if (offsets) Adopt(*std::move(offsets), "window");
  }

  void Eject(int64_t effort) {
    Begin("ejection");
    auto offsets = LowerByEjection(
        problem_, known_.offsets, std::max(goal_, known_.bound),
        EjectionVisits(problem_.items.size()) * effort, expired_);
    if (offsets) Adopt(*std::move(offsets), "ejection");
  }

  // Without a capacity, tries lower peaks with few nodes, so that a slow
  // machine soon has a good plan. Then tries the bound, which would prove
  // optimality, with a part of the budget, because that question may stay
  // undecided (as for MiniMalloc's D and J). Then tries lower peaks again.
  void Search() {
    const size_t n = problem_.items.size();
    if (options_.goal_is_capacity) {
      return Descend(0, NodesFor(n, kCapacityNodes));
    }
    const int64_t nodes = NodesFor(n, kSearchNodes);
    Descend(NodesFor(n, kCoarseNodes), nodes / 8);
    const int64_t bound = std::max(goal_, known_.bound);
    if (Open()) Ask("search", bound, nodes * 3 / 8);
    Descend(nodes / 12, nodes / 2);
  }

  // With a capacity, only searches for a plan that fits it. Otherwise searches
  // for a peak below the best plan's by a part of the gap, and continues from
  // each plan found. The part halves with each failure; when it is small, it is
  // reset and the nodes per search are doubled.
  void Descend(int64_t nodes_each, int64_t nodes) {
    if (options_.goal_is_capacity && Open()) Ask("search", goal_, nodes);
    if (options_.goal_is_capacity) return;
    constexpr double kFirst = 0.25, kLeast = 1.0 / 64;
    double part = kFirst;
    while (nodes > 0 && Open()) {
      const int64_t gap = known_.peak - std::max(goal_, known_.bound);
      const auto step = std::max<int64_t>(
          1, static_cast<int64_t>(part * static_cast<double>(gap)));
      const SearchResult result =
          Ask("search", known_.peak - step, std::min(nodes, nodes_each));
      nodes -= result.nodes;
      part =
          result.verdict == Verdict::kFits ? std::min(2 * part, 0.5) : part / 2;
      if (part >= kLeast) continue;
      part = kFirst;
      nodes_each *= 2;
    }
  }

  void Cbc() {
    Begin("cbc");
    MipResult result = SolveMip(
        problem_, known_.offsets, known_.bound, options_.deadline - absl::Now(),
        options_.asked.mip_program, [this] { return options_.Stopped(); });
    if (result.offsets) Adopt(*std::move(result.offsets), "cbc");
    Raise(result.bound, "cbc");
  }

  const Problem& problem_;
  const int64_t goal_;
  const PortfolioOptions& options_;
  Knowledge known_;
  const Expired expired_;
  std::unique_ptr<Restarts> restarts_;
};

// Makes a piece's plan by replay, sweep and greedy race.
Knowledge KnownOf(const Piece& piece, int64_t goal,
                  const PortfolioOptions& options) {
  Knowledge known{.offsets = ReplayAllocator(
                      piece.problem, [&options] { return options.Stopped(); }),
                  .bound = piece.problem.max_live,
                  .method = "replay"};
  known.peak = PeakOf(piece.problem, known.offsets);
  const Expired expired = [&options] { return options.Expired(); };
  for (const Stack stack : {Stack::kGroups, Stack::kBySize}) {
    if (piece.problem.items.size() < kMinSweepItems || known.peak <= goal)
      break;
    options.progress("sweep", known);
    auto swept = SweepFromPeak(piece.problem, stack, known.peak, goal, expired);
    if (!swept) continue;
    known.peak = PeakOf(piece.problem, *swept);
    known.offsets = *std::move(swept);
    known.method = "sweep";
  }
  const double gap = static_cast<double>(known.peak - known.bound) /
                     static_cast<double>(known.bound);
  if (piece.problem.items.size() > kMaxRacedItems && gap < kRacedGap) {
    return known;
  }
  options.progress("greedy race", known);
  GreedyResult greedy = GreedyRace(piece.problem, known.peak, goal, expired);
  if (greedy.peak < known.peak) {
    known.peak = greedy.peak;
    known.offsets = std::move(greedy.offsets);
    known.method = std::move(greedy.method);
  }
  return known;
}

// A piece with this many items that is most of the problem is not raced again.
constexpr size_t kMinItemsKept = 1000;

// Derives a piece's plan from that of the whole problem: items above a peeled
// one move down by its size.
Knowledge KnownOf(const Problem& problem, const Knowledge& whole,
                  const Piece& piece) {
  std::vector<uint8_t> inside(problem.items.size(), 0);
  int32_t from = std::numeric_limits<int32_t>::max();
  int32_t to = 0;
  for (const uint32_t k : piece.items) {
    inside[k] = 1;
    from = std::min(from, problem.items[k].lower);
    to = std::max(to, problem.items[k].upper);
  }
  std::vector<std::pair<int64_t, int64_t>> peeled;  // offset, size
  for (size_t k = 0; k < problem.items.size(); ++k) {
    const Item& item = problem.items[k];
    if (inside[k] || item.lower > from || item.upper < to) continue;
    peeled.emplace_back(whole.offsets[k], item.size);
  }
  std::sort(peeled.begin(), peeled.end());
  for (size_t i = 1; i < peeled.size(); ++i) {
    peeled[i].second += peeled[i - 1].second;
  }
  Knowledge known{.bound = piece.problem.max_live, .method = whole.method};
  for (const uint32_t k : piece.items) {
    const auto above = std::upper_bound(peeled.begin(), peeled.end(),
                                        std::pair(whole.offsets[k], INT64_MAX));
    const int64_t below =
        above == peeled.begin() ? 0 : std::prev(above)->second;
    known.offsets.push_back(whole.offsets[k] - below);
  }
  known.peak = PeakOf(piece.problem, known.offsets);
  return known;
}

Knowledge RunGreedy(const Problem& problem, const PortfolioOptions& options) {
  const Piece whole{.problem = problem};
  return KnownOf(whole, options.goal, options);
}

// Improves `known` by running the later arms on each piece of the problem.
void RunPieces(const Problem& problem, const PortfolioOptions& options,
               Knowledge* known) {
  Pieces pieces = Decompose(problem);
  const bool whole = pieces.pieces.size() == 1 && pieces.pieces[0].base == 0;
  Offsets offsets = std::move(pieces.offsets);
  int64_t goal = options.goal;
  int64_t peak = 0;
  int64_t bound = known->bound;
  std::string proved_by = known->proved_by;
  std::string method = known->method;
  for (const Piece& piece : pieces.pieces) {
    const int64_t own_goal = goal - piece.base;
    PortfolioOptions own = options;
    own.progress = [&](const std::string& arm, const Knowledge&) {
      options.progress(arm, *known);
    };
    const size_t items = piece.items.size();
    const bool most = whole || (items >= kMinItemsKept &&
                                items * 10 >= problem.items.size() * 9);
    Knowledge start =
        most ? KnownOf(problem, *known, piece) : KnownOf(piece, own_goal, own);
    if (whole) {
      start.bound = known->bound;
      start.proved_by = known->proved_by;
    }
    const Knowledge solved =
        PieceSolver(piece.problem, own_goal, own, std::move(start)).Run();
    for (size_t k = 0; k < piece.items.size(); ++k) {
      offsets[piece.items[k]] = piece.base + solved.offsets[k];
    }
    if (piece.base + solved.bound > bound) {
      bound = piece.base + solved.bound;
      proved_by = solved.proved_by;
    }
    if (piece.base + solved.peak > peak) {
      peak = piece.base + solved.peak;
      method = solved.method;
    }
    // Later pieces need not be lower than the highest so far.
    goal = std::max(goal, peak);
  }
  peak = PeakOf(problem, offsets);
  if (bound > known->bound) {
    known->bound = bound;
    known->proved_by = proved_by;
  }
  if (peak < known->peak) {
    known->peak = peak;
    known->offsets = std::move(offsets);
    known->method = method;
  }
}

// --- the whole

// A limit that keeps sums of sizes in 64 bits.
constexpr int64_t kMostBytes = int64_t{1} << 61;

// Makes the checks of proto/plan's decoder.
absl::Status CheckTrace(const plan::Trace& trace) {
  const int64_t alignment = trace.alignment.count();
  if (alignment < 1 || (alignment & (alignment - 1)) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("the trace's alignment {} is no power of two", alignment));
  }
  int64_t left = kMostBytes;
  for (const plan::Buffer& b : trace.buffers) {
    if (b.lower >= b.upper) {
      return absl::InvalidArgumentError(
          fmt::format("buffer {} lives in [{}, {}), an empty range", b.id,
                      b.lower, b.upper));
    }
    if (b.size < Bytes(0)) {
      return absl::InvalidArgumentError(
          fmt::format("buffer {} has {} bytes, below 0", b.id, b.size.count()));
    }
    if (b.size.count() > left - alignment) {
      return absl::InvalidArgumentError(
          fmt::format("the buffers up to {} have more than {} bytes together",
                      b.id, kMostBytes));
    }
    left -= RoundUp(b.size, trace.alignment).count();
  }
  return absl::OkStatus();
}

constexpr size_t kMinLeveledItems = 1000;

PortfolioOptions PortfolioOptionsOf(const MemoryOptions& options,
                                    const Problem& problem, absl::Time start) {
  PortfolioOptions inner{.asked = options,
                         .deadline = start + options.time_limit,
                         .goal = problem.max_live,
                         .progress = {}};
  if (options.capacity) {
    const int64_t units = options.capacity->count() / problem.unit;
    inner.goal_is_capacity = units >= problem.max_live;
    inner.goal = std::max(inner.goal, units);
  }
  inner.progress = [&options, unit = problem.unit, start](
                       const std::string& arm, const Knowledge& known) {
    if (!options.progress) return;
    options.progress({.arm = arm,
                      .peak = Bytes(known.peak * unit),
                      .lower_bound = Bytes(known.bound * unit),
                      .seconds = absl::ToDoubleSeconds(absl::Now() - start)});
  };
  return inner;
}

MemoryPlan PlanOf(const plan::Trace& trace, const Problem& problem,
                  const Knowledge& known) {
  MemoryPlan plan;
  static_cast<plan::Placement&>(plan) =
      ToPlacement(problem, known.offsets, trace);
  plan.lower_bound = Bytes(known.bound * problem.unit);
  plan.proved_by = known.Proved() ? known.proved_by : "none";
  plan.method = known.method;
  plan.buffers = trace.buffers.size();
  plan.max_live = Bytes(problem.max_live * problem.unit);
  return plan;
}

// Plans two levels, each with RunGreedy. If the plan is better than `known`,
// replaces `known` and returns true.
bool RunLevels(const plan::Trace& trace, const Problem& problem,
               const std::vector<Pass>& passes, const PortfolioOptions& inner,
               Knowledge* known) {
  const absl::Duration share = (inner.deadline - absl::Now()) / 8;
  const auto flat =
      [&](const plan::Trace& level) -> absl::StatusOr<plan::Placement> {
    const Problem part = Normalise(level);
    const MemoryOptions own{.time_limit = share, .stop = inner.asked.stop};
    return PlanOf(level, part,
                  RunGreedy(part, PortfolioOptionsOf(own, part, absl::Now())));
  };
  const auto leveled = PlanByPasses(trace, passes, flat);
  if (!leveled.ok() || !leveled->has_value()) return false;
  const plan::Placement& found = **leveled;
  if (found.peak.count() / problem.unit >= known->peak ||
      !plan::ValidatePlacement(trace, found).ok()) {
    return false;
  }
  known->peak = found.peak.count() / problem.unit;
  known->offsets.resize(problem.source.size());
  for (size_t k = 0; k < problem.source.size(); ++k) {
    known->offsets[k] = found.offsets[problem.source[k]].count() / problem.unit;
  }
  known->method = "levels:" + found.method;
  return true;
}

// Plans two levels if at least half of a long trace is repetition, because two
// levels take less time than a race over the flat trace.
bool RunLevelsFirst(const plan::Trace& trace, const Problem& problem,
                    const MemoryOptions& options, const PortfolioOptions& inner,
                    Knowledge* known) {
  if (!options.use_search || problem.items.size() < kMinLeveledItems) {
    return false;
  }
  const std::vector<Pass> passes =
      DetectPasses(trace, [&inner] { return inner.Stopped(); });
  return 2 * InPasses(trace, passes) >= trace.buffers.size() &&
         RunLevels(trace, problem, passes, inner, known);
}

struct Found {
  Knowledge known;
  bool leveled = false;
  bool expired = false;
};

Found SolveOnce(const plan::Trace& trace, const Problem& problem,
                const MemoryOptions& options, absl::Time start) {
  const PortfolioOptions inner = PortfolioOptionsOf(options, problem, start);
  Found found{.known = {.peak = INT64_MAX, .bound = problem.max_live}};
  Knowledge& known = found.known;
  found.leveled = RunLevelsFirst(trace, problem, options, inner, &known);
  if (known.peak > inner.goal) {
    Knowledge greedy = RunGreedy(problem, inner);
    if (greedy.peak <= known.peak) {
      known = std::move(greedy);
      found.leveled = false;
    }
  }
  if (known.peak > inner.goal && !inner.Expired()) {
    const int64_t before = known.peak;
    RunPieces(problem, inner, &known);
    found.leveled = found.leveled && known.peak == before;
  }
  found.expired = inner.Expired();
  return found;
}

// Combines the better plan and the better bound of two runs.
Found CombineFound(Found first, Found second) {
  const Knowledge& bound =
      first.known.bound > second.known.bound ? first.known : second.known;
  const int64_t most = bound.bound;
  const std::string proved_by = bound.proved_by;
  Found& best = first.known.peak < second.known.peak ? first : second;
  best.expired = second.expired;
  best.known.bound = most;
  best.known.proved_by = proved_by;
  return std::move(best);
}

// With a capacity, first searches only for a plan that fits it. If none is
// found, searches for the smallest peak.
Found Solve(const plan::Trace& trace, const Problem& problem,
            const MemoryOptions& options, absl::Time start) {
  if (!options.capacity) return SolveOnce(trace, problem, options, start);
  const int64_t units = options.capacity->count() / problem.unit;
  MemoryOptions free = options;
  free.capacity.reset();
  // No plan has a peak below max_live.
  if (units < problem.max_live) return SolveOnce(trace, problem, free, start);
  MemoryOptions asked = options;
  asked.time_limit = options.time_limit / 2;
  Found found = SolveOnce(trace, problem, asked, start);
  if (found.known.peak <= units) return found;
  return CombineFound(std::move(found), SolveOnce(trace, problem, free, start));
}

const char* StoppedBy(const MemoryPlan& plan, const MemoryOptions& options,
                      bool expired) {
  if (plan.optimal()) return "proof";
  if (options.capacity && plan.fits == true) return "capacity";
  if (options.stop != nullptr && options.stop->load()) return "stopped";
  return expired ? "time" : "work";
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const plan::Trace& trace,
                                      const MemoryOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckTrace(trace));
  const absl::Time start = absl::Now();
  const Problem problem = Normalise(trace);
  const Found found = Solve(trace, problem, options, start);
  MemoryPlan plan = PlanOf(trace, problem, found.known);
  plan.levels = found.leveled ? 2 : 1;
  if (options.capacity) {
    if (plan.peak <= *options.capacity) plan.fits = true;
    if (plan.lower_bound > *options.capacity) plan.fits = false;
  }
  plan.stopped_by = StoppedBy(plan, options, found.expired);
  SLUICE_RETURN_IF_ERROR(plan::ValidatePlacement(trace, plan));
  plan.valid = true;
  plan.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return plan;
}

}  // namespace sluice::planner
