// Types and commands that the checks share. Internal to doctor.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "client/ctl/doctor/checks.h"

namespace sluice::ctl {

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
// Removes all changes to the unit in /etc.
inline constexpr const char* kShippedUnit =
    "sudo systemctl revert sluiced && sudo systemctl restart sluiced";

}  // namespace sluice::ctl
