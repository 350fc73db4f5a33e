// What ranks copy by their plans, and what of that they are promised.
//
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::ctl {

// A table of the daemon's snapshot, with a line feed before it: a line for each
// rank with a weight, a guarantee, a plan's copies or late copies. Empty
// without such ranks, or from an older daemon. Throws nlohmann::json::exception
// if the snapshot is not what this version knows.
std::string RenderCopies(const nlohmann::json& node);

}  // namespace sluice::ctl
