// Formats the output of `jobs`.
//
// Errors: json::exception if the snapshot has another form; render.cc catches
// it.
//
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::ctl {

// Formats a line per job, for all its ranks together, or a line that no job
// runs.
std::string JobLines(const nlohmann::json& node);

}  // namespace sluice::ctl
