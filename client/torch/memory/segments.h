// Records segments, replays their plan and times them: the bookkeeping inside
// RegionAllocator.
//
// Thread safety: none; the allocator locks.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device/stream_timer.h"
#include "proto/base/clock.h"
#include "proto/base/units.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::runtime {

// Records the requests of segments. A trace's time is the count of requests and
// frees. A buffer counts as held until the segment's end if it is alive then,
// or if another thread freed it: such a free comes at another time each run.
//
// Each kind keeps its last trace (the first may hold one-time allocations), the
// least seconds and the number of executions.
class SegmentRecorder {
 public:
  // Sizes and planned places are multiples of `alignment`.
  explicit SegmentRecorder(Bytes alignment) : alignment_(alignment) {}
  void Begin(const std::string& kind) {
    const auto [at, added] = index_.emplace(kind, kinds_.size());
    if (added) kinds_.push_back({.name = kind});
    current_ = &kinds_[at->second];
    trace_ = plan::Trace{.alignment = alignment_};
    alive_.clear();
  }

  void Allocated(Bytes offset, Bytes size) {
    alive_[offset.count()] = trace_.buffers.size();
    const int64_t id = static_cast<int64_t>(trace_.buffers.size());
    trace_.buffers.push_back(
        {.id = id, .lower = trace_.end++, .upper = -1, .size = size});
  }

  void Freed(Bytes offset) {
    const auto found = alive_.find(offset.count());
    if (found == alive_.end()) return;  // allocated before the segment
    trace_.buffers[found->second].upper = trace_.end++;
    alive_.erase(found);
  }

  void End() {
    for (const auto& [offset, buffer] : alive_) {
      trace_.buffers[buffer].upper = trace_.end;
    }
    ++current_->executions;
    current_->trace = std::move(trace_);
    current_ = nullptr;
  }

  // Reports the time of one execution of a recorded kind.
  void Took(std::string_view kind, double seconds) {
    const auto at = index_.find(kind);
    if (at == index_.end()) return;  // Take() has removed it
    double& least = kinds_[at->second].seconds;
    least =
        timed_.insert(at->second).second ? seconds : std::min(least, seconds);
  }

  bool recording() const { return current_ != nullptr; }
  // Returns the kinds in the order in which they were first seen.
  std::vector<plan::SegmentKind> Take() {
    index_.clear();
    timed_.clear();
    current_ = nullptr;
    return std::exchange(kinds_, {});
  }

 private:
  const Bytes alignment_;
  std::vector<plan::SegmentKind> kinds_;
  std::map<std::string, size_t, std::less<>> index_;
  std::set<size_t> timed_;  // kinds with a reported time
  plan::SegmentKind* current_ = nullptr;
  plan::Trace trace_;
  std::unordered_map<int64_t, size_t> alive_;  // offset -> buffer
};

// Gives the k-th request of a segment its planned place, if the request matches
// the plan and the place is free.
class PlanReplay {
 public:
  PlanReplay() = default;
  // Places are relative to the planned area. InvalidArgument: the plan does not
  // match these kinds, leaves the area, or is not aligned.
  static absl::StatusOr<PlanReplay> Make(
      const std::vector<plan::SegmentPlan>& segments,
      const std::vector<plan::SegmentKind>& kinds, Bytes peak,
      Bytes alignment) {
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

  void Begin(const std::string& kind) {
    const auto found = plans_.find(kind);
    current_ = found == plans_.end() ? nullptr : &found->second;
    current_name_ = found == plans_.end() ? nullptr : &found->first;
    next_ = 0;
  }

  void End() { current_ = nullptr; }
  // Returns the place of the next request in the area; nullopt if it has none,
  // with `mismatch` set if the segment is planned.
  std::optional<Bytes> Next(Bytes size, bool* mismatch) {
    if (current_ == nullptr) return std::nullopt;
    const size_t k = next_++;
    *mismatch = true;
    if (k >= current_->size()) {
      return Mismatch(fmt::format("the plan has only {}", current_->size()));
    }
    const Slot slot = (*current_)[k];
    if (slot.size != size) {
      return Mismatch(
          fmt::format("asked {}, planned {}", size.count(), slot.size.count()));
    }
    if (Overlaps(slot)) {
      return Mismatch("its place is still held by a living block");
    }
    *mismatch = false;
    alive_.emplace(slot.place, slot.size);
    return slot.place;
  }

  void Freed(Bytes place) { alive_.erase(place); }

  bool idle() const { return alive_.empty(); }
  bool planned(const std::string& kind) const { return plans_.contains(kind); }
  // Returns why the last mismatch happened, for the log.
  std::string mismatch() const { return mismatch_; }

 private:
  struct Slot {
    Bytes place, size;
  };
  bool Overlaps(Slot slot) const {
    const auto above = alive_.lower_bound(slot.place);
    if (above != alive_.end() && above->first < slot.place + slot.size) {
      return true;
    }
    if (above == alive_.begin()) return false;
    const auto below = std::prev(above);
    return below->first + below->second > slot.place;
  }

  std::optional<Bytes> Mismatch(const std::string& why) {
    mismatch_ = fmt::format("segment '{}', request {}: {}", *current_name_,
                            next_ - 1, why);
    return std::nullopt;
  }

  std::unordered_map<std::string, std::vector<Slot>> plans_;
  const std::string* current_name_ = nullptr;
  const std::vector<Slot>* current_ = nullptr;
  size_t next_ = 0;
  std::map<Bytes, Bytes> alive_;  // place -> size
  std::string mismatch_;
};

struct SegmentTime {
  std::string_view kind;
  bool of_timeline;         // began while a timeline was recorded
  double start_s, seconds;  // start: monotonic
};

class SegmentTimes {
 public:
  // `driver` outlives the result of timer().
  void UseStream(device::Driver* driver, device::Stream stream) {
    timer_ = std::make_shared<device::StreamTimer>(driver);
    stream_ = stream;
  }

  // Returns the stream's timer; null if the calling thread computes. Its Align
  // and Await wait for the stream: call them without a lock.
  std::shared_ptr<device::StreamTimer> timer() const { return timer_; }
  device::Stream stream() const { return stream_; }
  void Close() { timer_.reset(); }

  // Begins a segment. `kind` must live until Take has returned its time.
  void Begin(std::string_view kind, bool of_timeline) {
    begun_ = true;
    current_ = {.kind = kind,
                .of_timeline = of_timeline,
                .start_s = MonotonicSeconds(),
                .seconds = 0};
    if (timer_ != nullptr && fault_.ok()) Keep(timer_->Begin(stream_));
  }

  void End() {
    if (!std::exchange(begun_, false)) return;
    current_.seconds = MonotonicSeconds() - current_.start_s;
    if (timer_ != nullptr && fault_.ok()) Keep(timer_->End(stream_));
    if (fault_.ok()) ended_.push_back(current_);
  }

  // Returns the times that became known since the last call, in order.
  std::vector<SegmentTime> Take() {
    std::vector<SegmentTime> known;
    for (; fault_.ok() && !ended_.empty(); ended_.pop_front()) {
      SegmentTime& oldest = ended_.front();
      if (timer_ != nullptr) {
        const auto span = timer_->Next();
        Keep(span.status());
        if (!span.ok() || !span->has_value()) break;
        oldest.start_s = (*span)->start_s;
        oldest.seconds = absl::ToDoubleSeconds((*span)->length);
      }
      known.push_back(oldest);
    }
    return known;
  }

  // The first failure of the stream's clock; segments after it have no time.
  const absl::Status& fault() const { return fault_; }
  void Keep(const absl::Status& status) { fault_.Update(status); }

 private:
  std::shared_ptr<device::StreamTimer> timer_;
  device::Stream stream_;
  bool begun_ = false;
  SegmentTime current_ = {};
  std::deque<SegmentTime> ended_;  // on a stream: times not known yet
  absl::Status fault_;
};

}  // namespace sluice::runtime
