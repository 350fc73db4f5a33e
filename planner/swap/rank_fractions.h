// Plans what the ranks of a node keep, swap and recompute, class by class, and
// explains the plan in words (internal to the planner).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/swap/node_swap.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::planner {

struct RankFractions {
  std::vector<plan::ClassPlan> classes;  // in the profile's order
  double alpha = 0;
  std::string alpha_limited_by;
  Bytes host_bytes;
};

struct FractionsPlan {
  std::vector<RankFractions> ranks;  // in the order of the profiles
  std::string infeasible;            // empty if feasible, else one line
  std::string limited_by = "none";   // NodePlan::limited_by
  std::vector<plan::PlanLimit> limits;
};

// Solves one LP (node_swap.h) over the profiles of all jobs. A shared class has
// the same fractions on all ranks of its job. Requested fractions are obeyed,
// and settled ranks do not change. Chosen fractions are multiples of 1/4096,
// and the host limits and `gpu_room` hold to the byte. `gpu_room` has the bytes
// that each rank may keep on its GPU in addition to its transient buffers.
absl::StatusOr<FractionsPlan> PlanFractions(
    const std::vector<plan::RankProfile>& profiles,
    const plan::NodeResources& resources, const std::vector<Bytes>& gpu_room);

// InvalidArgument, one line: a rank has two profiles, requests contradict each
// other, a settled profile has open choices, or an index is out of range.
absl::Status CheckProfiles(const std::vector<plan::RankProfile>& profiles,
                           const plan::NodeResources& resources);

// ---- Given fractions (given_fractions.cc) -----------------------------------

// Returns a class's given fractions: requested for the class, set by the user's
// alpha, or fixed because the runtime has no choice.
plan::GivenFractions GivenOf(const plan::RankProfile& profile,
                             const plan::SkeletalClass& skeletal);

// Returns the given fractions of all classes, with open ones as recomputed.
Fractions GivenOnly(const plan::RankProfile& profile);

// Return the bytes in host memory (swapped, and the profile's host_fixed), and
// the bytes that are kept on the GPU.
Bytes HostBytesOf(const plan::RankProfile& profile, const Fractions& fractions);
Bytes KeptBytesOf(const plan::RankProfile& profile, const Fractions& fractions);
inline double AsDouble(Bytes bytes) {
  return static_cast<double>(bytes.count());
}

// Returns whether the kind has a pass that copies but has no measured window,
// so that no copy can overlap with it.
bool HidesNothing(const plan::RankProfile& profile, size_t kind);

// ---- Explanations (explain.cc), for `sluicectl plan show ID --explain` ------

// Returns "3", or "3 of job 1" if there are several jobs.
std::string RankName(const std::vector<plan::RankProfile>& profiles,
                     size_t rank);

// Returns the use of links, host limits, and GPUs that can keep classes, and
// the gain from one more unit of each.
std::vector<plan::PlanLimit> LimitsOf(const NodeSwapProblem& problem,
                                      const NodeSwapResult& result);

// The full capacity that limits the layers of one kind: the first full host
// limit, or else a full link.
struct FullRow {
  std::string kind;  // "host" or "bandwidth"; empty if nothing is full
  // "link pcie0 d2h is full", and if there are several kinds "… while layers of
  // kind 'dense' run".
  std::string what;
};
struct FullRows {
  FullRow own;  // among the capacities that the rank uses
  FullRow job;  // among those of the whole job, which limit shared classes
};
std::vector<FullRows> FullRowsOf(const std::vector<plan::RankProfile>& profiles,
                                 const NodeSwapProblem& problem,
                                 const NodeSwapResult& result, size_t rank);

// Returns RankPlan::alpha_limited_by.
std::string LimitedBy(const plan::RankProfile& profile,
                      const Fractions& fractions,
                      const std::vector<FullRows>& full);

// Returns one line per class: why it is kept, swapped or recomputed. `stalls`
// says whether the plan exposes copies because that is faster.
std::vector<std::string> WhyOf(const plan::RankProfile& profile,
                               const Fractions& fractions,
                               const std::vector<FullRows>& full, bool stalls);

}  // namespace sluice::planner
