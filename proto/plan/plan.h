// The planner's answer. A plan is immutable; a new one takes effect only at a
// step boundary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/units.h"
#include "proto/plan/profile.h"

namespace sluice::plan {

// Addresses of the buffers of one trace, with a proved bound on their peak.
struct Placement {
  std::vector<Bytes> offsets;  // of trace.buffers[k], in order of requests
  Bytes peak;                  // bytes needed
  Bytes lower_bound;           // best proved bound; equal to peak if optimal
  std::string proved_by;       // "max_live", "search", "cbc", "none"
  std::string method;          // how it was found: "greedy:size", "cbc", …
  double seconds = 0;
  bool optimal() const { return peak == lower_bound; }
  bool operator==(const Placement&) const = default;
};

struct SegmentPlan {
  std::string name;     // SegmentKind::name
  Bytes base;           // offset in the transient region
  Placement placement;  // inside the segment
  bool operator==(const SegmentPlan&) const = default;
};

struct ClassPlan {
  std::string name;  // SkeletalClass::name
  TokenFractions fractions;
  std::string why;              // reason for the fractions, one line for people
  std::string kind = kOneKind;  // SkeletalClass::kind
  bool operator==(const ClassPlan&) const = default;
};

// A limited resource of a node, and how much of it a plan uses.
struct PlanLimit {
  std::string what;  // "link pcie0 d2h", "host of NUMA node 0", "GPU of rank 3"
  double used = 0;
  double capacity = 0;
  std::string unit;  // of `used` and `capacity`: "bytes", "bytes_per_second"
  bool binds = false;
  // How much one more GiB or GB/s would shorten the slowest rank's step and the
  // total recomputation.
  double one_more_step_seconds = 0;
  double one_more_recompute_seconds = 0;
};

struct RankPlan {
  int64_t job = 0;  // RankProfile::job
  Rank rank;
  std::vector<SegmentPlan> segments;
  Bytes transient_peak;  // of the whole transient region
  std::vector<ClassPlan> classes;
  // The swapped share of the bytes of all classes without must_swap. It is
  // MEMO's alpha if these classes all swap the same fraction.
  double alpha = 0;
  std::string alpha_limited_by;  // "none", "bandwidth", "host", "flag"
  Bytes host_bytes;              // all host memory that this rank needs
  bool operator==(const RankPlan&) const = default;
};

struct NodePlan {
  PlanId id;
  std::string profile_hash;  // hash of all rank profiles, in hex
  std::vector<RankPlan> ranks;
  double seconds = 0;  // how long solving took
  // Empty if the plan is feasible, else one line: what does not fit, its value,
  // the limit, what to do.
  std::string infeasible;
  // The scarce resource of an infeasible plan ("gpu_memory", "host_memory").
  std::string limited_by = "none";
  std::vector<PlanLimit> limits;
  // How many units (units.h) were solved, and how many had known plans.
  int64_t units_solved = 0;
  int64_t units_known = 0;
};

}  // namespace sluice::plan
