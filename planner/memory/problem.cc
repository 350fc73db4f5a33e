#include "planner/memory/problem.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace sluice::planner {
namespace {

struct LifetimeEvent {
  int64_t time;
  bool allocates;  // frees sort first: lifetimes are half-open
  size_t item;
  auto operator<=>(const LifetimeEvent&) const = default;
};

// Gives items their slots: an allocation that follows a free begins a slot.
void CompressTime(std::vector<LifetimeEvent> events, std::vector<Item>* items) {
  std::sort(events.begin(), events.end());
  int32_t slot = 0;
  bool freed = false;
  for (const LifetimeEvent& event : events) {
    if (event.allocates) {
      if (freed) ++slot;
      freed = false;
      (*items)[event.item].lower = slot;
    } else {
      freed = true;
      (*items)[event.item].upper = slot + 1;
    }
  }
}

}  // namespace

Problem Normalise(const plan::Trace& trace) {
  Problem problem;
  std::vector<LifetimeEvent> events;
  int64_t divisor = 0;
  for (size_t k = 0; k < trace.buffers.size(); ++k) {
    const plan::Buffer& buffer = trace.buffers[k];
    const int64_t size = RoundUp(buffer.size, trace.alignment).count();
    if (size == 0) continue;
    const size_t item = problem.items.size();
    problem.items.push_back(
        {.size = size, .birth = buffer.lower, .death = buffer.upper});
    problem.source.push_back(k);
    events.push_back({buffer.lower, true, item});
    events.push_back({buffer.upper, false, item});
    divisor = std::gcd(divisor, size);
  }
  problem.unit = std::max<int64_t>(divisor, 1);
  for (Item& item : problem.items) item.size /= problem.unit;
  CompressTime(std::move(events), &problem.items);
  FinishProblem(&problem);
  return problem;
}

RangeMax::RangeMax(const std::vector<int64_t>& values) {
  levels_.push_back(values);
  for (size_t width = 2; width <= values.size(); width *= 2) {
    const std::vector<int64_t>& half = levels_.back();
    std::vector<int64_t> level(values.size() - width + 1);
    for (size_t i = 0; i < level.size(); ++i) {
      level[i] = std::max(half[i], half[i + width / 2]);
    }
    levels_.push_back(std::move(level));
  }
}

int64_t RangeMax::Of(int32_t from, int32_t to) const {
  const auto width = static_cast<size_t>(to - from);
  const auto k = static_cast<size_t>(std::bit_width(width)) - 1;
  const std::vector<int64_t>& level = levels_[k];
  return std::max(level[static_cast<size_t>(from)],
                  level[static_cast<size_t>(to) - (size_t{1} << k)]);
}

std::vector<int64_t> NeighbourCounts(const Problem& problem) {
  // The numbers of items born and dead before each slot.
  std::vector<int64_t> born(problem.live.size() + 1);
  std::vector<int64_t> dead(problem.live.size() + 1);
  for (const Item& item : problem.items) {
    ++born[static_cast<size_t>(item.lower) + 1];
    ++dead[static_cast<size_t>(item.upper)];
  }
  std::partial_sum(born.begin(), born.end(), born.begin());
  std::partial_sum(dead.begin(), dead.end(), dead.begin());
  std::vector<int64_t> counts;
  for (const Item& item : problem.items) {
    // Items born before this item's end, less items dead at its birth.
    counts.push_back(born[static_cast<size_t>(item.upper)] -
                     dead[static_cast<size_t>(item.lower)]);
  }
  return counts;
}

void FinishProblem(Problem* problem) {
  int32_t slots = 0;
  for (const Item& item : problem->items) slots = std::max(slots, item.upper);
  std::vector<int64_t>& live = problem->live;
  live.assign(static_cast<size_t>(slots) + 1, 0);
  for (const Item& item : problem->items) {
    live[static_cast<size_t>(item.lower)] += item.size;
    live[static_cast<size_t>(item.upper)] -= item.size;
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  live.pop_back();
  const auto peak = std::max_element(live.begin(), live.end());
  problem->max_live = peak == live.end() ? 0 : *peak;
  problem->peak_slot = static_cast<int32_t>(peak - live.begin());
}

void CompressSlots(Problem* problem) {
  std::vector<LifetimeEvent> events;
  for (size_t k = 0; k < problem->items.size(); ++k) {
    events.push_back({problem->items[k].lower, true, k});
    events.push_back({problem->items[k].upper, false, k});
  }
  CompressTime(std::move(events), &problem->items);
  FinishProblem(problem);
}

int64_t PeakOf(const Problem& problem, const Offsets& offsets) {
  int64_t peak = 0;
  for (size_t k = 0; k < offsets.size(); ++k) {
    peak = std::max(peak, offsets[k] + problem.items[k].size);
  }
  return peak;
}

plan::Placement ToPlacement(const Problem& problem, const Offsets& offsets,
                            const plan::Trace& trace) {
  plan::Placement placement;
  placement.offsets.assign(trace.buffers.size(), Bytes(0));
  for (size_t k = 0; k < offsets.size(); ++k) {
    placement.offsets[problem.source[k]] = Bytes(offsets[k] * problem.unit);
  }
  placement.peak = Bytes(PeakOf(problem, offsets) * problem.unit);
  return placement;
}

}  // namespace sluice::planner
