// Finds problems and the command that solves each, and formats both.
// Thread safety: pure functions.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/doctor/facts.h"

namespace sluice::ctl {

enum class Health { kOk, kWarning, kProblem };

struct Finding {
  std::string what;  // "open files"
  Health health = Health::kOk;
  std::string said;  // the finding in one line
  std::string fix;   // a command that solves it; may be empty
};

// Returns one finding per check, always in the same order.
std::vector<Finding> Examine(const Facts& facts);
// Only the machine's checks, which need no daemon.
std::vector<Finding> ExamineMachine(const Facts& facts);

// Parses "0-2,5" to {0, 1, 2, 5}; returns an empty list for any other text.
std::vector<int> ParseNodes(const std::string& list);

// Returns whether there is no problem; warnings are allowed.
bool IsWell(const std::vector<Finding>& findings);
// Formats one line per finding, and one per command that solves it.
std::string RenderDoctor(const std::vector<Finding>& findings);
// Formats one line: {"ok", "findings": [{"what", "ok", "health", "said",
// "fix"}]}, a superset of `python -m sluice doctor --json`.
std::string RenderDoctorJson(const std::vector<Finding>& findings);

// ---- Internal: what the files of checks share ----

struct Check {
  const char* what;
  Finding (*look)(const Facts&);
};
std::span<const Check> ServiceChecks();
std::span<const Check> MachineChecks();

inline Finding Ok(std::string said, std::string fix = "") {
  return {"", Health::kOk, std::move(said), std::move(fix)};
}
inline Finding Warning(std::string said, std::string fix) {
  return {"", Health::kWarning, std::move(said), std::move(fix)};
}
inline Finding Problem(std::string said, std::string fix) {
  return {"", Health::kProblem, std::move(said), std::move(fix)};
}

inline bool Reached(const Facts& facts) { return facts.daemon.reached.ok(); }
// The following return commands. This one starts the daemon as the folder's
// owner, or restarts it under systemd.
std::string Start(const Facts& facts);
// Starts a new daemon below a keeper. Without systemd this ends the sessions.
std::string EndAndStart(const Facts& facts);
std::string Reload(const Facts& facts);
// Removes all changes to the unit in /etc, and restarts it.
inline constexpr const char* kShippedUnit =
    "sudo systemctl revert sluiced && sudo systemctl restart sluiced";

}  // namespace sluice::ctl
