// What ranks copy by their plans, and what of that they are promised.
//
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::ctl {

// Of the daemon's snapshot, with a line feed before it: a line for each rank
// that has more to say of its copies than that it gets a fair share as
// everybody does; empty where there is none, or from a daemon of before. Throws
// nlohmann::json::exception where the snapshot is not what this version knows.
std::string RenderCopies(const nlohmann::json& node);

}  // namespace sluice::ctl
