// A node's swap plan in words and numbers for people (internal to the
// planner): `sluicectl plan show ID --explain` prints them.
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

// "3", or "3 of job 1" where there are several jobs.
std::string RankName(const std::vector<plan::RankProfile>& profiles,
                     size_t rank);

// Links, host limits and the GPUs that keep something: what is used of them,
// and what one more buys.
std::vector<plan::PlanLimit> LimitsOf(const NodeSwapProblem& problem,
                                      const NodeSwapResult& result);

// What is full for layers of one kind: of host memory the first, else of links.
struct FullRow {
  std::string kind;  // "host", "bandwidth"; empty: nothing is
  // "link pcie0 d2h is full", of several kinds "… while layers of kind 'dense'
  // run".
  std::string what;
};
struct FullRows {
  FullRow own;  // of what the rank uses
  FullRow job;  // of what its job does: shared classes follow it
};
// By the kinds of the rank's profile.
std::vector<FullRows> FullRowsOf(const std::vector<plan::RankProfile>& profiles,
                                 const NodeSwapProblem& problem,
                                 const NodeSwapResult& result, size_t rank);

// RankPlan::alpha_limited_by.
std::string LimitedBy(const plan::RankProfile& profile,
                      const Fractions& fractions,
                      const std::vector<FullRows>& full);

// Why each class is kept, swapped or recomputed, one line each. `stalls`:
// copies show by choice.
std::vector<std::string> WhyOf(const plan::RankProfile& profile,
                               const Fractions& fractions,
                               const std::vector<FullRows>& full, bool stalls);

}  // namespace sluice::planner
