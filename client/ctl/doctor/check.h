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
// Return the checks of the daemon, its files and its keeper, and those of the
// machine.
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
// Returns a command that starts the daemon as the folder's owner, or restarts
// it under systemd.
std::string Start(const Facts& facts);
// Returns a command that ends a running daemon and starts a new one below a
// keeper. Without systemd this ends the sessions.
std::string EndAndStart(const Facts& facts);
// Returns a command that makes a running daemon read its configuration again.
std::string Reload(const Facts& facts);
// A command that removes all changes to the unit in /etc and restarts it as
// shipped.
inline constexpr const char* kShippedUnit =
    "sudo systemctl revert sluiced && sudo systemctl restart sluiced";

}  // namespace sluice::ctl
