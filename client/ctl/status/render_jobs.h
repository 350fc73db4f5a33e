// What `jobs` shows.
//
// Errors: json::exception where the snapshot is of another form, as in
// render.cc, which catches it.
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::ctl {

// A line per job, all its ranks together; or that there are none.
std::string JobLines(const nlohmann::json& node);

}  // namespace sluice::ctl
