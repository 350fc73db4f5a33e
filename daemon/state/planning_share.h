// Whose profiles and plans are saved. They are as long as users make them, and
// a checkpoint must have room for all else besides.
//
// A job is saved whole or left out: one that is left out goes on after a
// takeover like one that never asked for a plan. Where all jobs together are
// too much, the largest job of the user who has most is left out first, until
// the rest fits. So who takes more than others costs nobody but itself.
//
// Thread safety: one owner.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "daemon/core/state.h"

namespace sluice::daemon {

// A job whose profiles and plans are not saved.
struct LeftOut {
  JobKey job;
  size_t bytes = 0;  // that they would take
  bool operator==(const LeftOut&) const = default;
};

class PlanningShare {
 public:
  // `most`: bytes of all jobs together.
  explicit PlanningShare(size_t most) : most_(most) {}

  // Of a job's rows, one of kMember, kPlanInUse, kPlanPromised.
  static constexpr std::array kKinds = {RowKind::kMember, RowKind::kPlanInUse,
                                        RowKind::kPlanPromised};

  // Whoever is asked is told of all rows again: all are considered anew.
  void Clear();
  // That row takes so many bytes; 0: it is gone.
  void Set(const JobKey& job, RowKind kind, size_t bytes);
  bool IsSaved(const JobKey& job) const;
  // Those that were saved and are left out since: their rows go.
  std::vector<JobKey> TakeEvicted();
  // Those that are left out and were not when it was asked last.
  std::vector<LeftOut> TakeNews();
  // What TakeNews of another one, of which this is a copy, has said since.
  void KnowTold(const PlanningShare& other) { told_ = other.told_; }

 private:
  struct Entry {
    std::array<size_t, kKinds.size()> rows = {};
    bool saved = true;
    size_t bytes() const;
  };
  void Evict();

  size_t most_;
  std::map<JobKey, Entry> jobs_;
  // Of those that are saved.
  std::map<Principal, size_t> users_;
  size_t total_ = 0;
  std::vector<JobKey> evicted_;
  std::set<JobKey> told_;
  bool news_ = false;  // some may be
};

}  // namespace sluice::daemon
