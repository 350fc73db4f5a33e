// Explains a node's swap plan in words and numbers (internal to the planner):
// `sluicectl plan show ID --explain` prints them.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "planner/swap/given_fractions.h"
#include "planner/swap/node_swap.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// Returns "3", or "3 of job 1" if there are several jobs.
std::string RankName(const std::vector<plan::RankProfile>& profiles,
                     size_t rank);

// Returns the use of links, host limits and GPUs that keep something, and the
// gain from one more unit of each.
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
// Returns the full capacities for each kind of the rank's profile.
std::vector<FullRows> FullRowsOf(const std::vector<plan::RankProfile>& profiles,
                                 const NodeSwapProblem& problem,
                                 const NodeSwapResult& result, size_t rank);

// Returns RankPlan::alpha_limited_by.
std::string LimitedBy(const plan::RankProfile& profile,
                      const Fractions& fractions,
                      const std::vector<FullRows>& full);

// Returns one line per class: why it is kept, swapped or recomputed. `stalls`:
// the plan exposes copies because that is faster.
std::vector<std::string> WhyOf(const plan::RankProfile& profile,
                               const Fractions& fractions,
                               const std::vector<FullRows>& full, bool stalls);

}  // namespace sluice::planner
