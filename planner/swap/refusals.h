// Why a node cannot be planned at all: what is given of its fractions does not
// fit by itself (internal to the planner).
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>

#include "planner/swap/given_node.h"

namespace sluice::planner {

struct Refusal {
  std::string why;  // one line: what is needed, what there is, what to do
  std::string limited_by;  // NodePlan::limited_by
};

// The first limit that what is given exceeds, host memory before GPUs; nothing:
// it fits, whatever is chosen beside it.
std::optional<Refusal> RefusalOf(const GivenNode& node);

}  // namespace sluice::planner
