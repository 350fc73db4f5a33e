// What the checks are made of. Internal to doctor.
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
// The checks of the daemon, its files and its keeper; and of the machine.
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
// A command that starts a daemon here, again if need be, by the user that the
// folder belongs to; without systemd only where none runs.
std::string Start(const Facts& facts);
// One that ends the daemon if one runs, and starts it below a keeper. Without
// systemd sessions end by it.
std::string EndAndStart(const Facts& facts);
// One by which a running daemon reads its configuration again.
std::string Reload(const Facts& facts);
// One that has the unit as it is shipped, whatever was changed in /etc.
inline constexpr const char* kShippedUnit =
    "sudo systemctl revert sluiced && sudo systemctl restart sluiced";

}  // namespace sluice::ctl
