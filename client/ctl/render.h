// The daemon's snapshot and plans as text for people.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"

namespace sluice::ctl {

// Internal: the snapshot is not what this version knows.
absl::StatusOr<std::string> RenderStatus(const std::string& json);
absl::StatusOr<std::string> RenderJobs(const std::string& json);
absl::StatusOr<std::string> RenderBudgets(const std::string& json);

// `explain`: also why, what binds, what is proved, what more would buy.
std::string RenderPlan(const plan::NodePlan& plan, bool explain = false);

// A part of the snapshot ("jobs", "budgets") on one line, for --json; the whole
// of it where `key` is empty.
absl::StatusOr<std::string> JsonPart(const std::string& json,
                                     const std::string& key);

}  // namespace sluice::ctl
