#include "tests/fake_cuda/races.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::fake_cuda {

void Clock::Join(const Clock& other) {
  seen_.resize(std::max(seen_.size(), other.seen_.size()));
  for (size_t i = 0; i < other.seen_.size(); ++i) {
    seen_[i] = std::max(seen_[i], other.seen_[i]);
  }
}

uint64_t Clock::Advance(size_t stream) {
  seen_.resize(std::max(seen_.size(), stream + 1));
  return ++seen_[stream];
}

bool AllSeen(const Uses& uses, const Clock& by) {
  return std::all_of(uses.begin(), uses.end(), [&](const auto& use) {
    return by.Seen(use.first) >= use.second;
  });
}

// Splits the cell that contains `at`, so that no cell extends across `at`.
void RaceDetector::Split(Cells& cells, uint64_t at) {
  auto it = cells.upper_bound(at);
  if (it == cells.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Cell right = it->second;
  it->second.end = at;
  cells.emplace(at, std::move(right));
}

std::optional<std::string> RaceDetector::Check(const Cell& cell,
                                               const Timeline& by, bool writes,
                                               const std::string& what) {
  const auto unseen = [&](size_t stream, uint64_t tick) {
    return stream != by.stream && by.clock.Seen(stream) < tick;
  };
  const auto sentence = [&](const char* kind, size_t stream,
                            const Operation& earlier) {
    return fmt::format(
        "{}: {} on stream {} is not ordered after {} on stream "
        "{}",
        kind, what, by.stream, earlier.what, stream);
  };
  if (cell.writer && unseen(*cell.writer, cell.write.tick)) {
    return sentence(writes ? "write after write" : "read after write",
                    *cell.writer, cell.write);
  }
  if (!writes) return std::nullopt;
  for (const auto& [stream, read] : cell.reads) {
    if (unseen(stream, read.tick)) {
      return sentence("write after read", stream, read);
    }
  }
  return std::nullopt;
}

void RaceDetector::Note(Cell& cell, const Timeline& by, bool writes,
                        const std::string& what) {
  if (!writes) {
    cell.reads[by.stream] = {by.now(), what};
    return;
  }
  cell.reads.clear();
  cell.writer = by.stream;
  cell.write = {by.now(), what};
}

std::optional<std::string> RaceDetector::Access(const Timeline& by,
                                                Extent extent, bool writes,
                                                const std::string& what) {
  Cells& cells = objects_[extent.object];
  Split(cells, extent.begin);
  Split(cells, extent.end);
  std::optional<std::string> race;
  for (uint64_t at = extent.begin; at < extent.end;) {
    auto it = cells.lower_bound(at);
    if (it == cells.end() || it->first > at) {
      const uint64_t end =
          it == cells.end() ? extent.end : std::min(extent.end, it->first);
      it = cells.emplace(at, Cell{.end = end}).first;
    }
    if (!race) race = Check(it->second, by, writes, what);
    Note(it->second, by, writes, what);
    at = it->second.end;
  }
  return race;
}

void RaceDetector::Forget(Extent extent) {
  const auto object = objects_.find(extent.object);
  if (object == objects_.end()) return;
  Cells& cells = object->second;
  Split(cells, extent.begin);
  Split(cells, extent.end);
  cells.erase(cells.lower_bound(extent.begin), cells.lower_bound(extent.end));
  if (cells.empty()) objects_.erase(object);
}

}  // namespace sluice::fake_cuda
