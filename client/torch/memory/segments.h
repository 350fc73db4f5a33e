// Records segments and replays their plan: the bookkeeping inside
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

// Records the requests of segments. Time is the count of requests and frees. A
// buffer counts as held until the segment's end if it is still alive then, or
// if another thread freed it (that order would not repeat).
//
// If a kind runs again, its last trace is kept (the first may still hold
// one-time allocations), with the least seconds and the count of executions.
// The time of an execution may be reported after its end.
class SegmentRecorder {
 public:
  // Sizes and planned places are multiples of `alignment`.
  explicit SegmentRecorder(Bytes alignment) : alignment_(alignment) {}
  void Begin(const std::string& kind);
  void Allocated(Bytes offset, Bytes size);
  void Freed(Bytes offset);
  void End();
  // Reports the time of one execution of a recorded kind.
  void Took(std::string_view kind, double seconds);
  bool recording() const { return current_ != nullptr; }
  // Returns the kinds in the order in which they were first seen.
  std::vector<plan::SegmentKind> Take();

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
  enum class Outcome { kUnplanned, kPlanned, kMismatch };

  PlanReplay() = default;
  // Places are relative to the planned area. InvalidArgument: the plan does not
  // answer these kinds, leaves the area, or places a request at an offset that
  // is not a multiple of `alignment`.
  static absl::StatusOr<PlanReplay> Make(
      const std::vector<plan::SegmentPlan>& segments,
      const std::vector<plan::SegmentKind>& kinds, Bytes peak, Bytes alignment);

  void Begin(const std::string& kind);
  void End() { current_ = nullptr; }
  // Returns the place of the next request in the area; nullopt unless kPlanned.
  std::optional<Bytes> Next(Bytes size, Outcome* outcome);
  void Freed(Bytes place) { alive_.erase(place); }

  bool idle() const { return alive_.empty(); }
  bool planned(const std::string& kind) const { return plans_.contains(kind); }
  // Returns why the last kMismatch happened, for the log.
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
