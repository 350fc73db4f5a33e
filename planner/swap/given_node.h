// A node's question for fractions, with what is given of them (internal to the
// planner).
#pragma once

#include <vector>

#include "planner/swap/given_fractions.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::planner {

// What it refers to is its maker's.
struct GivenNode {
  const std::vector<plan::RankProfile>& profiles;
  const plan::NodeResources& resources;
  const std::vector<Bytes>& gpu_room;  // by rank: PlanFractions'
  std::vector<Fractions> given_only;   // by rank: GivenOnly's
};

}  // namespace sluice::planner
