#include "planner/memory/search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

namespace sluice::planner {
namespace {

constexpr int64_t kNoTop = std::numeric_limits<int64_t>::max();

}  // namespace

CanonicalSearch::CanonicalSearch(const Problem& problem)
    : problem_(problem), items_(problem.items), twin_(problem.items.size()) {
  FindNeighbours();
  FindAlive();
  FindTwins();
}

void CanonicalSearch::FindNeighbours() {
  neighbours_.starts.push_back(0);
  for (size_t a = 0; a < items_.size(); ++a) {
    for (size_t b = 0; b < items_.size(); ++b) {
      if (a != b && items_[a].lower < items_[b].upper &&
          items_[b].lower < items_[a].upper) {
        neighbours_.values.push_back(static_cast<uint32_t>(b));
      }
    }
    neighbours_.starts.push_back(
        static_cast<uint32_t>(neighbours_.values.size()));
  }
}

void CanonicalSearch::FindAlive() {
  std::vector<uint32_t>& starts = alive_.starts;
  starts.assign(problem_.live.size() + 1, 0);
  for (const Item& item : items_) {
    for (int32_t s = item.lower; s < item.upper; ++s) {
      ++starts[static_cast<size_t>(s) + 1];
    }
  }
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  alive_.values.resize(starts.back());
  std::vector<uint32_t> next = starts;
  for (uint32_t k = 0; k < items_.size(); ++k) {
    for (int32_t s = items_[k].lower; s < items_[k].upper; ++s) {
      alive_.values[next[static_cast<size_t>(s)]++] = k;
    }
  }
}

void CanonicalSearch::FindTwins() {
  std::map<std::tuple<int32_t, int32_t, int64_t>, int32_t> last;
  for (size_t k = 0; k < items_.size(); ++k) {
    const Item& item = items_[k];
    const auto [at, added] =
        last.emplace(std::tuple(item.lower, item.upper, item.size), -1);
    twin_[k] = at->second;
    at->second = static_cast<int32_t>(k);
  }
}

Verdict CanonicalSearch::Run(const Order& order, int64_t capacity,
                             int64_t max_nodes, const Expired& expired) {
  nodes_ = 0;
  stopped_ = false;
  if (problem_.max_live > capacity) return Verdict::kImpossible;
  if (items_.empty()) return Verdict::kFits;
  capacity_ = capacity;
  max_nodes_ = max_nodes;
  expired_ = &expired;
  Reset(order);
  const Part all{0, items_.size(), 0,
                 static_cast<int32_t>(problem_.live.size())};
  if (Solve(all, {})) return Verdict::kFits;
  return stopped_ ? Verdict::kUnknown : Verdict::kImpossible;
}

void CanonicalSearch::Reset(const Order& order) {
  const size_t n = items_.size();
  rank_.resize(n);
  for (uint32_t r = 0; r < n; ++r) rank_[order[r]] = r;
  least_.assign(n, 0);
  placed_.assign(n, 0);
  remaining_ = problem_.live;
  cover_.assign(problem_.live.size(), 0);
  support_.resize(n);
  witness_.resize(problem_.live.size());
  for (size_t k = 0; k < n; ++k) {
    support_[k] =
        neighbours_.begin(k) == neighbours_.end(k) ? 0 : *neighbours_.begin(k);
    for (int32_t s = items_[k].lower + 1; s < items_[k].upper; ++s) {
      ++cover_[static_cast<size_t>(s)];
    }
  }
  for (size_t s = 0; s < witness_.size(); ++s) {
    witness_[s] = alive_.begin(s) == alive_.end(s) ? 0 : *alive_.begin(s);
  }
  bad_slot_ = 0;
  bad_item_ = 0;
  open_.resize(n);
  std::iota(open_.begin(), open_.end(), 0u);
  position_ = open_;
  pool_.clear();
  trail_.clear();
}

bool CanonicalSearch::Solve(Part whole, Mark last) {
  const size_t before = trail_.size();
  for (const Part& part : Split(whole)) {
    if (!Fits(part, last) || !Branch(part, last)) {
      Rewind(before);
      return false;
    }
  }
  return true;
}

bool CanonicalSearch::Branch(Part part, Mark last) {
  const size_t first = pool_.size();
  AddCandidates(part, last);
  const size_t end = pool_.size();
  bool solved = false;
  for (size_t c = first; c < end && !solved && !OutOfBudget(); ++c) {
    const Candidate next = pool_[c];
    const size_t before = trail_.size();
    const Effect effect = Place(next);
    solved = effect.fits && Continue(Without(part, next.item), next, effect);
    if (solved) break;
    Rewind(before);
    // If no open item lives together with the placed one, the placed one blocks
    // none of them, so another candidate cannot help.
    if (stopped_ || !effect.hat) break;
  }
  pool_.resize(first);
  return solved;
}

bool CanonicalSearch::Continue(Part part, const Candidate& placed,
                               const Effect& effect) {
  if (part.begin == part.end) return true;
  const Mark mark{placed.offset, placed.rank};
  if (effect.cut) return Solve(part, mark);
  return Fits(part, mark) && Branch(part, mark);
}

bool CanonicalSearch::OutOfBudget() {
  ++nodes_;
  if (nodes_ >= max_nodes_ || (nodes_ % 512 == 0 && (*expired_)())) {
    stopped_ = true;
  }
  return stopped_;
}

bool CanonicalSearch::PassedOver(uint32_t k, Mark last) const {
  return least_[k] < last.offset ||
         (least_[k] == last.offset && rank_[k] < last.rank);
}

// Returns whether item k, which was passed over (its lowest place is before the
// mark), can rest on another open item that lives together with it and ends at
// `limit` or below.
bool CanonicalSearch::CanRest(uint32_t k, Mark last, int64_t limit) {
  const auto holds = [&](uint32_t other) {
    return !placed_[other] &&
           std::max(least_[other], last.offset) + items_[other].size <= limit;
  };
  const uint32_t* const end = neighbours_.end(k);
  if (neighbours_.begin(k) == end) return false;
  if (holds(support_[k])) return true;
  for (const uint32_t* other = neighbours_.begin(k); other != end; ++other) {
    if (!holds(*other)) continue;
    support_[k] = *other;
    return true;
  }
  return false;
}

bool CanonicalSearch::CanLieAt(uint32_t k, Mark last, int64_t limit) {
  return PassedOver(k, last) ? CanRest(k, last, limit) : least_[k] <= limit;
}

bool CanonicalSearch::HasPlace(uint32_t k, Mark last) {
  return !PassedOver(k, last) || CanRest(k, last, capacity_ - items_[k].size);
}

// Returns whether the slot's open items can be stacked from the lowest place
// that any of them can still get.
bool CanonicalSearch::SlotFits(size_t slot, Mark last) {
  if (remaining_[slot] == 0) return true;
  const int64_t limit = capacity_ - remaining_[slot];
  if (limit < last.offset) return false;
  const auto holds = [&](uint32_t k) {
    return !placed_[k] && CanLieAt(k, last, limit);
  };
  if (holds(witness_[slot])) return true;
  for (const uint32_t* k = alive_.begin(slot); k != alive_.end(slot); ++k) {
    if (!holds(*k)) continue;
    witness_[slot] = *k;
    return true;
  }
  return false;
}

// Returns whether every slot fits and every open item has a place.
bool CanonicalSearch::Fits(Part part, Mark last) {
  const auto from = static_cast<size_t>(part.from);
  const auto to = static_cast<size_t>(part.to);
  if (from <= bad_slot_ && bad_slot_ < to && !SlotFits(bad_slot_, last)) {
    return false;
  }
  const size_t at = position_[bad_item_];
  if (part.begin <= at && at < part.end && !HasPlace(bad_item_, last)) {
    return false;
  }
  for (size_t s = from; s < to; ++s) {
    if (SlotFits(s, last)) continue;
    bad_slot_ = s;
    return false;
  }
  for (size_t i = part.begin; i < part.end; ++i) {
    if (HasPlace(open_[i], last)) continue;
    bad_item_ = open_[i];
    return false;
  }
  return true;
}

// Sorts a range and splits it into groups that no open item connects in time.
std::vector<CanonicalSearch::Part> CanonicalSearch::Split(Part whole) {
  std::ranges::sort(
      std::span(open_).subspan(whole.begin, whole.end - whole.begin), {},
      [this](uint32_t k) { return std::pair(items_[k].lower, k); });
  std::vector<Part> parts;
  for (size_t i = whole.begin; i < whole.end; ++i) {
    const Item& item = items_[open_[i]];
    position_[open_[i]] = static_cast<uint32_t>(i);
    if (parts.empty() || item.lower >= parts.back().to) {
      parts.push_back({i, i, item.lower, item.upper});
    }
    parts.back().end = i + 1;
    parts.back().to = std::max(parts.back().to, item.upper);
  }
  return parts;
}

// Adds the items that may be placed next to pool_, in ascending (offset, rank).
void CanonicalSearch::AddCandidates(Part part, Mark last) {
  // An item with its lowest place at or above the lowest possible top could
  // move down below all open items, so placing it next would not be canonical.
  int64_t lowest_top = kNoTop;
  for (size_t i = part.begin; i < part.end; ++i) {
    const uint32_t k = open_[i];
    lowest_top = std::min(lowest_top, least_[k] + items_[k].size);
  }
  const size_t first = pool_.size();
  for (size_t i = part.begin; i < part.end; ++i) {
    const uint32_t k = open_[i];
    if (least_[k] >= lowest_top || PassedOver(k, last)) continue;
    if (twin_[k] >= 0 && !placed_[static_cast<size_t>(twin_[k])]) continue;
    pool_.push_back({least_[k], rank_[k], k});
  }
  std::ranges::sort(std::span(pool_).subspan(first));
}

CanonicalSearch::Part CanonicalSearch::Without(Part part, uint32_t item) {
  const uint32_t at = position_[item];
  const uint32_t moved = open_[part.end - 1];
  open_[at] = moved;
  open_[part.end - 1] = item;
  position_[moved] = at;
  position_[item] = static_cast<uint32_t>(part.end - 1);
  --part.end;
  return part;
}

CanonicalSearch::Effect CanonicalSearch::Place(const Candidate& next) {
  const Item& item = items_[next.item];
  trail_.push_back({next.item, next.offset, true});
  placed_[next.item] = 1;
  Effect effect;
  for (int32_t s = item.lower; s < item.upper; ++s) {
    const auto slot = static_cast<size_t>(s);
    remaining_[slot] -= item.size;
    if (s > item.lower && --cover_[slot] == 0) effect.cut = true;
  }
  const int64_t top = next.offset + item.size;
  const uint32_t* const end = neighbours_.end(next.item);
  for (const uint32_t* k = neighbours_.begin(next.item); k != end; ++k) {
    if (placed_[*k]) continue;
    effect.hat = true;
    if (least_[*k] >= top) continue;
    trail_.push_back({*k, least_[*k], false});
    least_[*k] = top;
    if (top > capacity_ - items_[*k].size) effect.fits = false;
  }
  return effect;
}

void CanonicalSearch::Rewind(size_t to) {
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

}  // namespace sluice::planner
