#include "planner/memory/portfolio.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/time/clock.h"
#include "planner/memory/arms.h"
#include "planner/memory/greedy.h"
#include "planner/memory/mip_process.h"
#include "planner/memory/search.h"

namespace sluice::planner {
namespace {

// Nodes of the search, each of 0.5 to 1 microsecond.
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
// sweep leaves a gap of kRacedGap, because the race would use up the time of
// ejection.
constexpr size_t kMinSweepItems = 20'000;
constexpr size_t kMaxRacedItems = 100'000;
constexpr double kRacedGap = 0.02;

constexpr size_t kMinWindowItems = 300;
// A visit of ejection takes half a nanosecond. On larger problems the race
// takes more time, so ejection gets fewer visits.
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

// CBC proves problems of 40 to 60 buffers, not reliably; on larger ones it only
// takes time.
constexpr size_t kMaxCbcItems = 60;

// Runs the arms on one piece of the problem.
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
  // machine has a good plan soon; then the bound, which proves optimality, with
  // a limited budget because that may never be decided (as for MiniMalloc's D
  // and J); then lower peaks again.
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

  // Searches for a peak below the best plan's by a part of the gap, and
  // continues from each plan found. The part halves with each failure; when it
  // is small, it is reset and the nodes are doubled.
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

}  // namespace

Knowledge RunGreedy(const Problem& problem, const PortfolioOptions& options) {
  const Piece whole{.problem = problem};
  return KnownOf(whole, options.goal, options);
}

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
    // Later pieces need only be as low as the first.
    if (piece.base + solved.peak > peak) {
      peak = piece.base + solved.peak;
      method = solved.method;
    }
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

}  // namespace sluice::planner
