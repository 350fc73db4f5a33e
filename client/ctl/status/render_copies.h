// What ranks copy by their plans, and the bandwidth that they are promised.
//
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::ctl {

// A table with an empty line before it: a line for each rank with a weight, a
// guarantee, a plan's copies or late copies. Empty without such ranks, or from
// an older daemon. Throws nlohmann::json::exception if this version does not
// know the snapshot's form.
std::string RenderCopies(const nlohmann::json& node);

}  // namespace sluice::ctl
