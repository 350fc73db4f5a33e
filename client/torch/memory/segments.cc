#include "client/torch/memory/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "proto/base/status.h"

namespace sluice::runtime {

void SegmentRecorder::Begin(const std::string& kind) {
  const auto [at, added] = index_.emplace(kind, kinds_.size());
  if (added) kinds_.push_back({.name = kind});
  current_ = &kinds_[at->second];
  trace_ = plan::Trace{.alignment = alignment_};
  alive_.clear();
}

void SegmentRecorder::Allocated(Bytes offset, Bytes size) {
  alive_[offset.count()] = trace_.buffers.size();
  const int64_t id = static_cast<int64_t>(trace_.buffers.size());
  trace_.buffers.push_back(
      {.id = id, .lower = trace_.end++, .upper = -1, .size = size});
}

void SegmentRecorder::Freed(Bytes offset) {
  const auto found = alive_.find(offset.count());
  if (found == alive_.end()) return;  // allocated before the segment
  trace_.buffers[found->second].upper = trace_.end++;
  alive_.erase(found);
}

void SegmentRecorder::End() {
  for (const auto& [offset, buffer] : alive_) {
    trace_.buffers[buffer].upper = trace_.end;
  }
  ++current_->executions;
  current_->trace = std::move(trace_);
  current_ = nullptr;
}

void SegmentRecorder::Took(std::string_view kind, double seconds) {
  const auto at = index_.find(kind);
  if (at == index_.end()) return;  // Take() has removed it
  double& least = kinds_[at->second].seconds;
  least = timed_.insert(at->second).second ? seconds : std::min(least, seconds);
}

std::vector<plan::SegmentKind> SegmentRecorder::Take() {
  index_.clear();
  timed_.clear();
  current_ = nullptr;
  return std::exchange(kinds_, {});
}

absl::StatusOr<PlanReplay> PlanReplay::Make(
    const std::vector<plan::SegmentPlan>& segments,
    const std::vector<plan::SegmentKind>& kinds, Bytes peak, Bytes alignment) {
  PlanReplay replay;
  for (const plan::SegmentPlan& segment : segments) {
    const auto kind = std::find_if(
        kinds.begin(), kinds.end(),
        [&](const plan::SegmentKind& k) { return k.name == segment.name; });
    if (kind == kinds.end() ||
        kind->trace.buffers.size() != segment.placement.offsets.size()) {
      return absl::InvalidArgumentError(fmt::format(
          "the plan's segment '{}' has {} places, which no recorded segment "
          "asks for: plan again from this run's profile",
          segment.name, segment.placement.offsets.size()));
    }
    std::vector<Slot>& slots = replay.plans_[segment.name];
    for (size_t k = 0; k < kind->trace.buffers.size(); ++k) {
      const Slot slot{segment.base + segment.placement.offsets[k],
                      kind->trace.buffers[k].size};
      if (slot.place < Bytes(0) || slot.place + slot.size > peak ||
          slot.place.count() % alignment.count() != 0) {
        return absl::InvalidArgumentError(fmt::format(
            "the plan puts request {} of segment '{}' at {} + {} of an area "
            "of {}: it must lie inside, at a multiple of {}",
            k, segment.name, slot.place.count(), slot.size.count(),
            peak.count(), alignment.count()));
      }
      slots.push_back(slot);
    }
  }
  return replay;
}

void PlanReplay::Begin(const std::string& kind) {
  const auto found = plans_.find(kind);
  current_ = found == plans_.end() ? nullptr : &found->second;
  current_name_ = found == plans_.end() ? nullptr : &found->first;
  next_ = 0;
}

bool PlanReplay::Overlaps(Slot slot) const {
  const auto above = alive_.lower_bound(slot.place);
  if (above != alive_.end() && above->first < slot.place + slot.size) {
    return true;
  }
  if (above == alive_.begin()) return false;
  const auto below = std::prev(above);
  return below->first + below->second > slot.place;
}

std::optional<Bytes> PlanReplay::Mismatch(std::string why, Outcome* outcome) {
  *outcome = Outcome::kMismatch;
  mismatch_ = fmt::format("segment '{}', request {}: {}", *current_name_,
                          next_ - 1, why);
  return std::nullopt;
}

std::optional<Bytes> PlanReplay::Next(Bytes size, Outcome* outcome) {
  *outcome = Outcome::kUnplanned;
  if (current_ == nullptr) return std::nullopt;
  const size_t k = next_++;
  if (k >= current_->size()) {
    return Mismatch(fmt::format("the plan has only {}", current_->size()),
                    outcome);
  }
  const Slot slot = (*current_)[k];
  if (slot.size != size) {
    return Mismatch(
        fmt::format("asked {}, planned {}", size.count(), slot.size.count()),
        outcome);
  }
  if (Overlaps(slot)) {
    return Mismatch("its place is still held by a living block", outcome);
  }
  alive_.emplace(slot.place, slot.size);
  *outcome = Outcome::kPlanned;
  return slot.place;
}

}  // namespace sluice::runtime
