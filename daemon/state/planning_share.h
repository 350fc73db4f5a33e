// Chooses the profiles and plans that are saved. Users decide how long they
// are, and a checkpoint must have room for all else besides.
//
// A job is saved whole or left out: one that is left out goes on after a
// takeover like one that never asked for a plan. If all jobs together are too
// much, the largest job of the user with the most is left out, until the rest
// fits. So a user that takes more than others loses only its own jobs' plans.
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

// A job with profiles and plans that are not saved.
struct LeftOut {
  JobKey job;
  size_t bytes = 0;  // that they would take
  bool operator==(const LeftOut&) const = default;
};

class PlanningShare {
 public:
  // `most`: bytes of all jobs together.
  explicit PlanningShare(size_t most) : most_(most) {}

  // The kinds of a job's rows that are counted.
  static constexpr std::array kKinds = {RowKind::kMember, RowKind::kPlanInUse,
                                        RowKind::kPlanPromised};

  // Forgets all rows: the caller sets them again.
  void Clear();
  // Sets the row's bytes; 0 removes it.
  void Set(const JobKey& job, RowKind kind, size_t bytes);
  bool IsSaved(const JobKey& job) const;
  // Jobs that were saved and are left out since: their rows must be erased.
  std::vector<JobKey> TakeEvicted();
  // Jobs left out since the last call.
  std::vector<LeftOut> TakeNews();

 private:
  struct Entry {
    std::array<size_t, kKinds.size()> rows = {};
    bool saved = true;
    size_t bytes() const;
  };
  void Evict();

  size_t most_;
  std::map<JobKey, Entry> jobs_;
  // Bytes of each user's saved jobs.
  std::map<Principal, size_t> users_;
  size_t total_ = 0;
  std::vector<JobKey> evicted_;
  std::set<JobKey> told_;
  bool news_ = false;  // some may be
};

}  // namespace sluice::daemon
