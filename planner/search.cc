#include "planner/search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace sluice::planner {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

using Verdict = SearchResult::Verdict;
using Indices = std::vector<uint32_t>;

// Static orders are written as MiniMalloc writes them: the letters' criteria
// one after another, all descending.
//   T  most units alive in a slot the item lives in
//   W  lifetime     A  area     Z  size     O  items it lives together with
const char* const kOrders[] = {"TWA", "WAT", "TAW", "TOW", "OZW", "AWT",
                               "ZWT", "WZT", "OWA", "TZW", "AZT", "OTA"};

double Criterion(const Problem& problem, size_t k, size_t neighbours,
                 char letter) {
  const Item& item = problem.items[k];
  switch (letter) {
    case 'T':
      return static_cast<double>(
          *std::max_element(problem.live.begin() + item.lower,
                            problem.live.begin() + item.upper));
    case 'W':
      return item.lifetime();
    case 'A':
      return item.area();
    case 'Z':
      return static_cast<double>(item.size);
    default:
      return static_cast<double>(neighbours);
  }
}

// The problem with its items renumbered by a static order, so that an index
// is a rank in it.
struct Ordered {
  std::vector<Item> items;
  Indices original;
  std::vector<Indices> neighbours;  // that live together
  std::vector<int32_t> twin;        // the previous equal item, or -1
};

std::vector<Indices> Neighbours(const std::vector<Item>& items) {
  std::vector<Indices> neighbours(items.size());
  for (uint32_t a = 0; a < items.size(); ++a) {
    for (uint32_t b = 0; b < a; ++b) {
      if (items[a].lower < items[b].upper && items[b].lower < items[a].upper) {
        neighbours[a].push_back(b);
        neighbours[b].push_back(a);
      }
    }
  }
  return neighbours;
}

Indices StaticOrder(const Problem& problem,
                    const std::vector<Indices>& neighbours,
                    const std::string& letters) {
  std::vector<std::vector<double>> keys(problem.items.size());
  for (size_t k = 0; k < keys.size(); ++k) {
    for (const char letter : letters) {
      keys[k].push_back(-Criterion(problem, k, neighbours[k].size(), letter));
    }
  }
  Indices order(keys.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
  return order;
}

Ordered Reorder(const Problem& problem, Indices order) {
  Ordered ordered;
  for (const uint32_t k : order) ordered.items.push_back(problem.items[k]);
  ordered.original = std::move(order);
  ordered.neighbours = Neighbours(ordered.items);
  const std::vector<Item>& items = ordered.items;
  for (size_t k = 0; k < items.size(); ++k) {
    int32_t twin = static_cast<int32_t>(k) - 1;
    while (twin >= 0 &&
           (items[static_cast<size_t>(twin)].lower != items[k].lower ||
            items[static_cast<size_t>(twin)].upper != items[k].upper ||
            items[static_cast<size_t>(twin)].size != items[k].size)) {
      --twin;
    }
    ordered.twin.push_back(twin);
  }
  return ordered;
}

// Depth first over canonical placements: items in ascending (offset, rank),
// each resting on 0 or on one placed before it.
class Search {
 public:
  Search(const Ordered& ordered, const Problem& problem, int64_t capacity,
         int64_t max_nodes, const std::function<bool()>& expired)
      : ordered_(ordered),
        items_(ordered.items),
        capacity_(capacity),
        max_nodes_(max_nodes),
        expired_(expired),
        least_(items_.size(), 0),
        placed_(items_.size(), false),
        remaining_(problem.live),
        floor_(problem.live.size()) {}

  Verdict Run() {
    Indices all(items_.size());
    std::iota(all.begin(), all.end(), 0u);
    if (Solve(all, {})) return Verdict::kFits;
    return stopped_ ? Verdict::kUnknown : Verdict::kImpossible;
  }

  // Offsets by the order's ranks, after kFits.
  const std::vector<int64_t>& offsets() const { return least_; }
  int64_t nodes() const { return nodes_; }

 private:
  // Where the last placement was; the next must not lie before it.
  struct Mark {
    int64_t offset = 0;
    uint32_t rank = 0;
  };
  struct Candidate {
    int64_t offset;
    uint32_t item;
  };
  struct Change {
    uint32_t item;
    int64_t least;  // before
    bool placement;
  };

  bool Solve(const Indices& open, Mark last) {
    if (open.empty()) return true;
    if (OutOfBudget()) return false;
    if (!SectionsFit(open, last)) return false;
    const std::vector<Indices> parts = Split(open);
    if (parts.size() == 1) return Branch(open, last);
    const size_t before = trail_.size();
    for (const Indices& part : parts) {
      if (!Branch(part, last)) {
        Rewind(before);
        return false;
      }
    }
    return true;
  }

  bool OutOfBudget() {
    ++nodes_;
    if (nodes_ >= max_nodes_ || (nodes_ % 512 == 0 && expired_())) {
      stopped_ = true;
    }
    return stopped_;
  }

  // The lowest place an open item can still get. One whose own place lies
  // before the mark was passed over: it will rest on another open item that
  // it lives with; kNone if there is none, for then it can't be placed at all.
  int64_t LowestPlace(uint32_t k, Mark last) const {
    if (least_[k] > last.offset ||
        (least_[k] == last.offset && k >= last.rank)) {
      return least_[k];
    }
    int64_t lowest = kNone;
    for (const uint32_t other : ordered_.neighbours[k]) {
      if (placed_[other]) continue;
      lowest = std::min(
          lowest, std::max(least_[other], last.offset) + items_[other].size);
    }
    return lowest;
  }

  // Lower bounds: in every slot what is still open has to lie above the
  // lowest place any of it can get.
  bool SectionsFit(const Indices& open, Mark last) {
    std::fill(floor_.begin(), floor_.end(), kNone);
    for (const uint32_t k : open) {
      const int64_t least = LowestPlace(k, last);
      if (least > capacity_ - items_[k].size) return false;
      for (int32_t s = items_[k].lower; s < items_[k].upper; ++s) {
        int64_t& floor = floor_[static_cast<size_t>(s)];
        floor = std::min(floor, least);
      }
    }
    for (size_t s = 0; s < floor_.size(); ++s) {
      if (floor_[s] != kNone && floor_[s] + remaining_[s] > capacity_) {
        return false;
      }
    }
    return true;
  }

  // Groups of open items with a slot between them in which none lives
  // (floor_ is fresh): they no longer touch each other.
  std::vector<Indices> Split(const Indices& open) {
    std::vector<int32_t> part_of(floor_.size(), -1);
    int32_t parts = 0;
    // A cut lies where no open item covers both sides of a slot border.
    std::vector<int32_t> reach(floor_.size(), 0);
    for (const uint32_t k : open) {
      int32_t& r = reach[static_cast<size_t>(items_[k].lower)];
      r = std::max(r, items_[k].upper);
    }
    int32_t until = 0;
    for (size_t s = 0; s < reach.size(); ++s) {
      if (reach[s] == 0 && static_cast<int32_t>(s) >= until) continue;
      if (static_cast<int32_t>(s) >= until) ++parts;
      until = std::max(until, reach[s]);
      part_of[s] = parts - 1;
    }
    std::vector<Indices> result(static_cast<size_t>(parts));
    for (const uint32_t k : open) {
      const int32_t part = part_of[static_cast<size_t>(items_[k].lower)];
      result[static_cast<size_t>(part)].push_back(k);
    }
    return result;
  }

  bool Branch(const Indices& open, Mark last) {
    for (const Candidate& next : Candidates(open, last)) {
      const size_t before = trail_.size();
      const bool hat = Place(next);
      Indices rest;
      rest.reserve(open.size());
      for (const uint32_t k : open) {
        if (k != next.item) rest.push_back(k);
      }
      if (Solve(rest, {next.offset, next.item})) return true;
      Rewind(before);
      if (stopped_) return false;
      // Nothing open lives together with it: it was in nobody's way.
      if (!hat) return false;
    }
    return false;
  }

  // The items that may come next, in ascending (offset, rank).
  std::vector<Candidate> Candidates(const Indices& open, Mark last) const {
    // If the lowest possible top is below a candidate, that item could drop
    // under everything that is still open.
    int64_t lowest_top = kNone;
    for (const uint32_t k : open) {
      lowest_top = std::min(lowest_top, least_[k] + items_[k].size);
    }
    std::vector<Candidate> candidates;
    for (const uint32_t k : open) {
      const int64_t offset = least_[k];
      const bool canonical =
          offset > last.offset || (offset == last.offset && k >= last.rank);
      if (!canonical || offset >= lowest_top) continue;
      const int32_t twin = ordered_.twin[k];
      if (twin >= 0 && !placed_[static_cast<size_t>(twin)]) continue;
      candidates.push_back({offset, k});
    }
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) {
                return std::pair(a.offset, a.item) <
                       std::pair(b.offset, b.item);
              });
    return candidates;
  }

  // Returns whether an open item lives together with it.
  bool Place(const Candidate& next) {
    const Item& item = items_[next.item];
    trail_.push_back({next.item, least_[next.item], true});
    placed_[next.item] = true;
    for (int32_t s = item.lower; s < item.upper; ++s) {
      remaining_[static_cast<size_t>(s)] -= item.size;
    }
    bool hat = false;
    const int64_t top = next.offset + item.size;
    for (const uint32_t k : ordered_.neighbours[next.item]) {
      if (placed_[k]) continue;
      hat = true;
      if (least_[k] >= top) continue;
      trail_.push_back({k, least_[k], false});
      least_[k] = top;
    }
    return hat;
  }

  void Rewind(size_t to) {
    while (trail_.size() > to) {
      const Change change = trail_.back();
      trail_.pop_back();
      least_[change.item] = change.least;
      if (!change.placement) continue;
      placed_[change.item] = false;
      const Item& item = items_[change.item];
      for (int32_t s = item.lower; s < item.upper; ++s) {
        remaining_[static_cast<size_t>(s)] += item.size;
      }
    }
  }

  const Ordered& ordered_;
  const std::vector<Item>& items_;
  const int64_t capacity_;
  const int64_t max_nodes_;
  const std::function<bool()>& expired_;
  std::vector<int64_t> least_;  // lowest place left; the offset once placed
  std::vector<bool> placed_;
  std::vector<int64_t> remaining_;  // open units a slot
  std::vector<int64_t> floor_;      // scratch of SectionsFit
  std::vector<Change> trail_;
  int64_t nodes_ = 0;
  bool stopped_ = false;
};

}  // namespace

SearchResult SearchPlacement(const Problem& problem, int64_t capacity,
                             int64_t max_nodes,
                             const std::function<bool()>& expired) {
  SearchResult result;
  if (problem.max_live > capacity) {
    result.verdict = Verdict::kImpossible;
    return result;
  }
  const std::vector<Indices> neighbours = Neighbours(problem.items);
  std::vector<Ordered> runs;
  for (const char* letters : kOrders) {
    runs.push_back(Reorder(problem, StaticOrder(problem, neighbours, letters)));
  }
  for (int64_t budget = 2000; result.nodes < max_nodes; budget *= 4) {
    for (size_t run = 0; run < runs.size(); ++run) {
      const int64_t left = max_nodes - result.nodes;
      if (left <= 0 || expired()) return result;
      Search search(runs[run], problem, capacity, std::min(budget, left),
                    expired);
      result.verdict = search.Run();
      result.nodes += search.nodes();
      if (result.verdict == Verdict::kUnknown) continue;
      result.order = kOrders[run];
      if (result.verdict == Verdict::kImpossible) return result;
      result.offsets.resize(problem.items.size());
      for (size_t k = 0; k < problem.items.size(); ++k) {
        result.offsets[runs[run].original[k]] = search.offsets()[k];
      }
      return result;
    }
  }
  return result;
}

}  // namespace sluice::planner
