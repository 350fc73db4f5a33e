#include "planner/memory/search.h"

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
        placed_(items_.size(), 0),
        support_(items_.size(), 0),
        remaining_(problem.live),
        cover_(problem.live.size(), 0),
        alive_(problem.live.size()),
        witness_(problem.live.size(), 0) {
    for (uint32_t k = 0; k < items_.size(); ++k) {
      for (int32_t s = items_[k].lower; s < items_[k].upper; ++s) {
        alive_[static_cast<size_t>(s)].push_back(k);
        if (s > items_[k].lower) ++cover_[static_cast<size_t>(s)];
      }
      const Indices& neighbours = ordered_.neighbours[k];
      if (!neighbours.empty()) support_[k] = neighbours.front();
    }
    for (size_t s = 0; s < alive_.size(); ++s) {
      if (!alive_[s].empty()) witness_[s] = alive_[s].front();
    }
  }

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
  // What a placement did to the open items around it.
  struct Effect {
    bool hat = false;  // one lives together with it
    bool cut = false;  // two groups no longer touch
    bool fits = true;  // none was pushed above the capacity
  };

  bool Solve(const Indices& open, Mark last) {
    const size_t before = trail_.size();
    for (const Indices& part : Split(open)) {
      if (!Fits(part, last) || !Branch(part, last)) {
        Rewind(before);
        return false;
      }
    }
    return true;
  }

  bool Branch(const Indices& open, Mark last) {
    for (const Candidate& next : Candidates(open, last)) {
      if (OutOfBudget()) return false;
      const size_t before = trail_.size();
      const Effect effect = Place(next);
      if (effect.fits && Continue(open, {next.offset, next.item}, effect)) {
        return true;
      }
      Rewind(before);
      if (stopped_) return false;
      // Nothing open lives together with it: it was in nobody's way.
      if (!effect.hat) return false;
    }
    return false;
  }

  bool Continue(const Indices& open, Mark mark, const Effect& effect) {
    Indices rest;
    rest.reserve(open.size());
    for (const uint32_t k : open) {
      if (k != mark.rank) rest.push_back(k);
    }
    if (rest.empty()) return true;
    if (effect.cut) return Solve(rest, mark);
    return Fits(rest, mark) && Branch(rest, mark);
  }

  bool OutOfBudget() {
    ++nodes_;
    if (nodes_ >= max_nodes_ || (nodes_ % 512 == 0 && expired_())) {
      stopped_ = true;
    }
    return stopped_;
  }

  bool PassedOver(uint32_t k, Mark last) const {
    return least_[k] < last.offset ||
           (least_[k] == last.offset && k < last.rank);
  }

  // An item whose own place lies before the mark was passed over: it will
  // rest on another open item that it lives with. Whether one is low enough
  // for it to end up at `limit` or below. The one found last is asked first.
  bool CanRest(uint32_t k, Mark last, int64_t limit) {
    const Indices& neighbours = ordered_.neighbours[k];
    const auto holds = [&](uint32_t other) {
      return !placed_[other] &&
             std::max(least_[other], last.offset) + items_[other].size <= limit;
    };
    if (neighbours.empty()) return false;
    if (holds(support_[k])) return true;
    for (const uint32_t other : neighbours) {
      if (!holds(other)) continue;
      support_[k] = other;
      return true;
    }
    return false;
  }

  bool CanLieAt(uint32_t k, Mark last, int64_t limit) {
    return PassedOver(k, last) ? CanRest(k, last, limit) : least_[k] <= limit;
  }

  // Lower bounds: every open item has a place left, and in every slot what is
  // still open lies above the lowest place that any of it can get.
  bool Fits(const Indices& open, Mark last) {
    int32_t from = items_[open[0]].lower;
    int32_t to = 0;
    for (const uint32_t k : open) {
      from = std::min(from, items_[k].lower);
      to = std::max(to, items_[k].upper);
      if (PassedOver(k, last) &&
          !CanRest(k, last, capacity_ - items_[k].size)) {
        return false;
      }
    }
    for (int32_t s = from; s < to; ++s) {
      if (!SlotFits(static_cast<size_t>(s), last)) return false;
    }
    return true;
  }

  bool SlotFits(size_t slot, Mark last) {
    if (remaining_[slot] == 0) return true;
    const int64_t limit = capacity_ - remaining_[slot];
    if (limit < 0) return false;
    const auto holds = [&](uint32_t k) {
      return !placed_[k] && CanLieAt(k, last, limit);
    };
    if (holds(witness_[slot])) return true;
    for (const uint32_t k : alive_[slot]) {
      if (!holds(k)) continue;
      witness_[slot] = k;
      return true;
    }
    return false;
  }

  // Groups of open items that no open item joins across a slot border.
  std::vector<Indices> Split(const Indices& open) const {
    std::vector<int32_t> part_of(cover_.size(), 0);
    for (size_t s = 1; s < part_of.size(); ++s) {
      part_of[s] = part_of[s - 1] + (cover_[s] == 0 ? 1 : 0);
    }
    std::vector<Indices> parts;
    std::vector<int32_t> index(cover_.size(), -1);
    for (const uint32_t k : open) {
      int32_t& part = index[static_cast<size_t>(
          part_of[static_cast<size_t>(items_[k].lower)])];
      if (part < 0) {
        part = static_cast<int32_t>(parts.size());
        parts.emplace_back();
      }
      parts[static_cast<size_t>(part)].push_back(k);
    }
    return parts;
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
      if (least_[k] >= lowest_top || PassedOver(k, last)) continue;
      const int32_t twin = ordered_.twin[k];
      if (twin >= 0 && !placed_[static_cast<size_t>(twin)]) continue;
      candidates.push_back({least_[k], k});
    }
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) {
                return std::pair(a.offset, a.item) <
                       std::pair(b.offset, b.item);
              });
    return candidates;
  }

  Effect Place(const Candidate& next) {
    const Item& item = items_[next.item];
    trail_.push_back({next.item, least_[next.item], true});
    placed_[next.item] = 1;
    Effect effect;
    for (int32_t s = item.lower; s < item.upper; ++s) {
      const auto slot = static_cast<size_t>(s);
      remaining_[slot] -= item.size;
      if (s > item.lower && --cover_[slot] == 0) effect.cut = true;
    }
    const int64_t top = next.offset + item.size;
    for (const uint32_t k : ordered_.neighbours[next.item]) {
      if (placed_[k]) continue;
      effect.hat = true;
      if (least_[k] >= top) continue;
      trail_.push_back({k, least_[k], false});
      least_[k] = top;
      if (top > capacity_ - items_[k].size) effect.fits = false;
    }
    return effect;
  }

  void Rewind(size_t to) {
    while (trail_.size() > to) {
      const Change change = trail_.back();
      trail_.pop_back();
      least_[change.item] = change.least;
      if (!change.placement) continue;
      placed_[change.item] = 0;
      const Item& item = items_[change.item];
      for (int32_t s = item.lower; s < item.upper; ++s) {
        const auto slot = static_cast<size_t>(s);
        remaining_[slot] += item.size;
        if (s > item.lower) ++cover_[slot];
      }
    }
  }

  const Ordered& ordered_;
  const std::vector<Item>& items_;
  const int64_t capacity_;
  const int64_t max_nodes_;
  const std::function<bool()>& expired_;
  std::vector<int64_t> least_;      // lowest place left; the offset once placed
  std::vector<uint8_t> placed_;     // not vector<bool>: read in inner loops
  Indices support_;                 // what CanRest found last
  std::vector<int64_t> remaining_;  // open units a slot
  std::vector<int32_t> cover_;  // open items across the border before a slot
  std::vector<Indices> alive_;  // all items of a slot
  Indices witness_;             // what SlotFits found last
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
