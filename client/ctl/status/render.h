// Formats the daemon's snapshot and plans as text for people.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/plan/plan.h"

namespace sluice::ctl {

// Internal: this version cannot read the snapshot's form.
absl::StatusOr<std::string> RenderStatus(const std::string& json);
absl::StatusOr<std::string> RenderJobs(const std::string& json);
absl::StatusOr<std::string> RenderBandwidth(const std::string& json);
absl::StatusOr<std::string> RenderBudgets(const std::string& json);

// These format the links of the snapshot `node` (daemon/README.md), one per
// line. RenderMeasuredLinks returns "" if no measurement is stored. They throw
// nlohmann::json::exception if `node` has another form.
std::string RenderLinks(const nlohmann::json& node);
std::string RenderMeasuredLinks(const nlohmann::json& node);

// Formats a line for each process that holds memory but has no session. Sets
// `returning` to whether memory of ended sessions is not free yet.
absl::StatusOr<std::string> RenderHolders(const std::string& json,
                                          bool& returning);

// `explain` adds the reasons, what is proved, the use of each limit, and the
// gain from more of a resource.
std::string RenderPlan(const plan::NodePlan& plan, bool explain = false);

// Formats one line of --json: the whole snapshot (no key), one part ("jobs"),
// or an object of several parts.
absl::StatusOr<std::string> JsonPart(const std::string& json,
                                     const std::vector<std::string>& keys);

// The last event that was shown. Each daemon numbers its events from 1.
struct SeenEvents {
  uint64_t generation = 0;  // of the daemon; 0: no event shown yet
  uint64_t last = 0;
};

// Formats the events of a snapshot, taken at `now`, that come after `seen`, and
// advances `seen`. A first line states how many events after `seen` the daemon
// has dropped. `as_json`: one object per line, with the time of day instead of
// the age. Internal: this version cannot read the snapshot.
absl::StatusOr<std::string> RenderEventLines(const std::string& snapshot,
                                             SeenEvents& seen, bool as_json,
                                             absl::Time now);

}  // namespace sluice::ctl
