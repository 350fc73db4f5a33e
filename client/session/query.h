// Queries the daemon as an observer, which has no rank and no lease. The
// daemon's own user sees everything, another user only what belongs to it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"

namespace sluice::client {

struct NodeStatus {
  std::string json;                    // keys: daemon/README.md
  std::optional<plan::NodePlan> plan;  // set if a plan was asked for
};

// An empty `socket` means DefaultSocket(); an empty `plan_id` asks for no plan.
// Errors are those of Session::Open; NotFound also if the plan does not exist
// or belongs to another user. Thread safety: safe.
absl::StatusOr<NodeStatus> QueryNode(const std::string& socket,
                                     const std::string& plan_id = "");

}  // namespace sluice::client
