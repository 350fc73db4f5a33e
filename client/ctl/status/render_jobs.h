// The output of `jobs`.
//
// Errors: json::exception if the snapshot has another form; render.cc catches
// it.
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::ctl {

// A line per job, for all its ranks together; or a line that there is none.
std::string JobLines(const nlohmann::json& node);

}  // namespace sluice::ctl
