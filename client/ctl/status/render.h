// The daemon's snapshot and plans as text for people.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"

namespace sluice::ctl {

// Internal: the snapshot is not what this version knows.
absl::StatusOr<std::string> RenderStatus(const std::string& json);
absl::StatusOr<std::string> RenderJobs(const std::string& json);
absl::StatusOr<std::string> RenderBandwidth(const std::string& json);
absl::StatusOr<std::string> RenderBudgets(const std::string& json);

// A line for each process without a session that has memory. `returning`:
// whether there is memory of ended sessions that has not come back.
absl::StatusOr<std::string> RenderHolders(const std::string& json,
                                          bool& returning);

// `explain`: also why, what binds, what is proved, what more would buy.
std::string RenderPlan(const plan::NodePlan& plan, bool explain = false);

// For --json, on one line: the whole snapshot (no key), a part of it ("jobs"),
// or an object of some.
absl::StatusOr<std::string> JsonPart(const std::string& json,
                                     const std::vector<std::string>& keys);

}  // namespace sluice::ctl
