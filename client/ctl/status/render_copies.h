// Formats how much ranks copy by their plans, and the bandwidth that the daemon
// promises them.
//
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::ctl {

// Formats an empty line and a table with a line for each rank that has a
// weight, a guarantee, a plan's copies or late copies. Empty without such
// ranks, or from an older daemon. Throws nlohmann::json::exception if this
// version cannot read the snapshot's form.
std::string RenderCopies(const nlohmann::json& node);

}  // namespace sluice::ctl
