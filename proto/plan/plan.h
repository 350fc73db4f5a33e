// What the planner answers. A plan is immutable; a new one takes over only at
// a step boundary. Plain data; thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/units.h"
#include "proto/plan/fractions.h"
#include "proto/plan/profile.h"

namespace sluice::plan {

// Where the buffers of one trace lie, with the proof of how good that is.
struct Placement {
  std::vector<Bytes> offsets;  // of trace.buffers[k], in request order
  Bytes peak;                  // bytes needed
  Bytes lower_bound;           // best proved; peak == lower_bound is optimal
  std::string proved_by;       // "max_live", "search", "cbc", "none"
  std::string method;          // what found it: "greedy:size", "cbc", …
  double seconds = 0;
  bool optimal() const { return peak == lower_bound; }
  bool operator==(const Placement&) const = default;
};

struct SegmentPlan {
  std::string name;     // SegmentKind::name
  Bytes base;           // of the segment in the transient region (level 2)
  Placement placement;  // inside the segment (level 1)
  bool operator==(const SegmentPlan&) const = default;
};

struct ClassPlan {
  std::string name;  // SkeletalClass::name
  TokenFractions fractions;
  std::string why;              // one line for people
  std::string kind = kOneKind;  // SkeletalClass::kind
  bool operator==(const ClassPlan&) const = default;
};

// What a node has of something, and what a plan makes of it.
struct PlanLimit {
  std::string what;  // "link pcie0 d2h", "host of NUMA node 0", "GPU of rank 3"
  double used = 0;
  double capacity = 0;
  std::string unit;  // of both: "bytes", "bytes_per_second"
  bool binds = false;
  // By how much one more GiB or GB/s shortens the slowest rank's step, and
  // all recomputation; solved again.
  double one_more_step_seconds = 0;
  double one_more_recompute_seconds = 0;
};

struct RankPlan {
  int64_t job = 0;  // as RankProfile's
  Rank rank;
  std::vector<SegmentPlan> segments;
  Bytes transient_peak;  // of the whole transient region
  std::vector<ClassPlan> classes;
  // The swapped share of the free classes' bytes, of all layers: MEMO's alpha
  // where all swap the same fraction. `classes` are the truth.
  double alpha = 0;
  std::string alpha_limited_by;  // "none", "bandwidth", "host", "flag"
  Bytes host_bytes;              // this rank needs, all told
  bool operator==(const RankPlan&) const = default;
};

struct NodePlan {
  PlanId id;
  std::string profile_hash;  // of all rank profiles it answers, hex
  std::vector<RankPlan> ranks;
  double seconds = 0;  // to solve
  // Empty when feasible; else one line: what, value, limit, what to do.
  std::string infeasible;
  // The scarce resource of an infeasible plan: "gpu_memory", "host_memory";
  // "none" for a feasible plan.
  std::string limited_by = "none";
  std::vector<PlanLimit> limits;
  // Units (units.h) that were planned for it, and those that were known before.
  int64_t units_solved = 0;
  int64_t units_known = 0;
};

}  // namespace sluice::plan
