// Recording segments, and replaying their plan: the bookkeeping inside
// RegionAllocator, without memory or locks.
//
// Thread safety: none; the allocator locks.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "proto/base/units.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::runtime {

// Writes down the requests of segments. Time is the count of requests and
// frees. A buffer that is alive at the end of its segment, or was freed by
// another thread (whose order would not repeat), is held until the end.
//
// A kind that runs again keeps its last trace (the first may still hold
// one-time allocations), the least seconds and the count of executions. How
// long an execution took may be told later than its end.
class SegmentRecorder {
 public:
  // `alignment`: what sizes are multiples of, and places are to be.
  explicit SegmentRecorder(Bytes alignment) : alignment_(alignment) {}
  void Begin(const std::string& kind);
  void Allocated(Bytes offset, Bytes size);
  void Freed(Bytes offset);
  void End();
  // An execution of a kind that was recorded.
  void Took(std::string_view kind, double seconds);
  bool recording() const { return current_ != nullptr; }
  // In the order in which kinds were first seen.
  std::vector<plan::SegmentKind> Take();

 private:
  const Bytes alignment_;
  std::vector<plan::SegmentKind> kinds_;
  std::map<std::string, size_t, std::less<>> index_;
  std::set<size_t> timed_;  // kinds of which an execution's time is known
  plan::SegmentKind* current_ = nullptr;
  plan::Trace trace_;
  std::unordered_map<int64_t, size_t> alive_;  // offset -> buffer
};

// Gives the k-th request of a segment its planned place, if it is the request
// that was planned and the place is free.
class PlanReplay {
 public:
  enum class Outcome { kUnplanned, kPlanned, kMismatch };

  PlanReplay() = default;
  // Places are relative to the planned area. InvalidArgument: a plan that
  // does not answer these kinds, leaves the area, or places a request at no
  // multiple of `alignment`.
  static absl::StatusOr<PlanReplay> Make(
      const std::vector<plan::SegmentPlan>& segments,
      const std::vector<plan::SegmentKind>& kinds, Bytes peak, Bytes alignment);

  void Begin(const std::string& kind);
  void End() { current_ = nullptr; }
  // The place of the next request, in the area; nothing unless kPlanned.
  std::optional<Bytes> Next(Bytes size, Outcome* outcome);
  void Freed(Bytes place) { alive_.erase(place); }

  bool idle() const { return alive_.empty(); }
  bool planned(const std::string& kind) const { return plans_.contains(kind); }
  // Why the last kMismatch happened, for the log.
  std::string mismatch() const { return mismatch_; }

 private:
  struct Slot {
    Bytes place, size;
  };
  bool Overlaps(Slot slot) const;
  std::optional<Bytes> Mismatch(std::string why, Outcome* outcome);

  std::unordered_map<std::string, std::vector<Slot>> plans_;
  const std::string* current_name_ = nullptr;
  const std::vector<Slot>* current_ = nullptr;
  size_t next_ = 0;
  std::map<Bytes, Bytes> alive_;  // place -> size
  std::string mismatch_;
};

}  // namespace sluice::runtime
