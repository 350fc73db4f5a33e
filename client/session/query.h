// Queries the daemon as an observer: no rank, no lease, no grant pages.
//
// An ordinary user sees what belongs to it, the daemon's own user everything.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"

namespace sluice::client {

struct NodeStatus {
  std::string json;                    // keys: daemon/README.md
  std::optional<plan::NodePlan> plan;  // if one was asked for
};

// `socket` empty: DefaultSocket(). `plan_id` empty: no plan. Errors are those
// of Session::Open; NotFound also if the plan does not exist or is another
// user's. Thread safety: safe.
absl::StatusOr<NodeStatus> QueryNode(const std::string& socket,
                                     const std::string& plan_id = "");

}  // namespace sluice::client
