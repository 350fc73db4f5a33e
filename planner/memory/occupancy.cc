#include "planner/memory/occupancy.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace sluice::planner {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// An item fills nodes at depths that are multiples of this. With 1, a short
// item looks for a gap in one list a level, each with a few of the long ones;
// with 4, four times more inserts leave a quarter of the lists, whose spans
// have mostly grown together.
constexpr int kStride = 4;
// Up to 2^kStride on either side a level, of at most 32 levels.
constexpr size_t kMaxVisited = 2 * 16 * 32;

}  // namespace

Occupancy::Occupancy(size_t slots)
    : leaves_(std::bit_ceil(std::max<size_t>(slots, 1))), nodes_(2 * leaves_) {}

void Occupancy::Clear() {
  for (Node& node : nodes_) {
    node.within.clear();
    node.across.clear();
  }
}

template <typename Inside, typename Above>
void Occupancy::Visit(int32_t lower, int32_t upper, int stride, Inside inside,
                      Above above) {
  struct Frame {
    size_t node, from, width;
    int depth;
  };
  // Level by level: wide nodes, whose spans say most, come first.
  Frame queue[kMaxVisited];
  size_t next = 0;
  size_t count = 0;
  queue[count++] = {1, 0, leaves_, 0};
  const auto low = static_cast<size_t>(lower);
  const auto high = static_cast<size_t>(upper);
  while (next < count) {
    const Frame frame = queue[next++];
    if (low <= frame.from && frame.from + frame.width <= high &&
        (frame.depth % stride == 0 || frame.width == 1)) {
      inside(nodes_[frame.node]);
      continue;
    }
    above(nodes_[frame.node]);
    const size_t half = frame.width / 2;
    const size_t middle = frame.from + half;
    if (low < middle)
      queue[count++] = {2 * frame.node, frame.from, half, frame.depth + 1};
    if (high > middle)
      queue[count++] = {2 * frame.node + 1, middle, half, frame.depth + 1};
  }
}

void Occupancy::Insert(Span span, Spans* spans) {
  // The first that meets the new one, then those it swallows.
  const auto first =
      std::partition_point(spans->begin(), spans->end(),
                           [&](const Span& s) { return s.end < span.begin; });
  auto last = first;
  while (last != spans->end() && last->begin <= span.end) {
    span.begin = std::min(span.begin, last->begin);
    span.end = std::max(span.end, last->end);
    ++last;
  }
  if (first == last) {
    spans->insert(first, span);
  } else {
    *first = span;
    spans->erase(first + 1, last);
  }
}

void Occupancy::Add(int32_t lower, int32_t upper, int64_t begin, int64_t end) {
  const Span span{begin, end};
  Visit(
      lower, upper, kStride,
      [span](Node& node) {
        Insert(span, &node.within);
        Insert(span, &node.across);
      },
      [span](Node& node) { Insert(span, &node.within); });
}

void Occupancy::Open(int32_t lower, int32_t upper) {
  cursors_.clear();
  above_.clear();
  const auto add = [](const Spans& spans, std::vector<Cursor>* cursors) {
    if (spans.empty()) return;
    cursors->push_back({spans.data(), spans.data() + spans.size()});
  };
  Visit(
      lower, upper, 1, [&](Node& node) { add(node.within, &cursors_); },
      [&](Node& node) { add(node.across, &above_); });
  cursors_.insert(cursors_.end(), above_.begin(), above_.end());
}

// The lowest address >= `from` with `size` free units above it. Cursors only
// move up.
int64_t Occupancy::FirstFree(int64_t from, int64_t size) {
  size_t agreed = 0;  // cursors in a row that have nothing against `from`
  size_t k = 0;
  while (agreed < cursors_.size()) {
    Cursor& cursor = cursors_[k];
    k = k + 1 == cursors_.size() ? 0 : k + 1;
    if (cursor.at != cursor.end && cursor.at->end <= from) {
      // Mostly the next one or two; far jumps by halving.
      const Span* near = std::min(cursor.at + 4, cursor.end);
      while (cursor.at != near && cursor.at->end <= from) ++cursor.at;
      if (cursor.at == near && near != cursor.end) {
        cursor.at = std::partition_point(
            cursor.at, cursor.end,
            [from](const Span& s) { return s.end <= from; });
      }
    }
    bool moved = false;
    while (cursor.at != cursor.end && cursor.at->begin < from + size) {
      from = cursor.at->end;
      ++cursor.at;
      moved = true;
    }
    agreed = moved ? 1 : agreed + 1;
  }
  return from;
}

// Of what FirstFree left: every cursor is at its first span above the gap.
int64_t Occupancy::NextTaken() const {
  int64_t next = kNever;
  for (const Cursor& cursor : cursors_) {
    if (cursor.at != cursor.end) next = std::min(next, cursor.at->begin);
  }
  return next;
}

int64_t Occupancy::Find(int32_t lower, int32_t upper, int64_t size, Fit fit) {
  Open(lower, upper);
  int64_t at = FirstFree(0, size);
  if (fit == Fit::kFirst) return at;
  int64_t best = at;
  int64_t best_gap = kNever;
  while (true) {
    const int64_t taken = NextTaken();
    if (taken == kNever) return best_gap == kNever ? at : best;
    if (taken - at < best_gap) {
      best_gap = taken - at;
      best = at;
      if (best_gap == size) return best;
    }
    at = FirstFree(taken, size);
  }
}

}  // namespace sluice::planner
