// Formats the daemon's snapshot and plans as text for people.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"

namespace sluice::ctl {

// Internal: this version cannot read the snapshot's form.
absl::StatusOr<std::string> RenderStatus(const std::string& json);
absl::StatusOr<std::string> RenderJobs(const std::string& json);
absl::StatusOr<std::string> RenderBandwidth(const std::string& json);
absl::StatusOr<std::string> RenderBudgets(const std::string& json);

// Formats a line for each process without a session that has memory. Sets
// `returning` to whether memory of ended sessions is not free yet.
absl::StatusOr<std::string> RenderHolders(const std::string& json,
                                          bool& returning);

// `explain` adds the reasons, the binding limits, what is proved, and what more
// of a resource would gain.
std::string RenderPlan(const plan::NodePlan& plan, bool explain = false);

// Formats one line of --json: the whole snapshot (no key), one part ("jobs"),
// or an object of several parts.
absl::StatusOr<std::string> JsonPart(const std::string& json,
                                     const std::vector<std::string>& keys);

}  // namespace sluice::ctl
