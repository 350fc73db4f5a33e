// Formats the output of `budget`.
//
// Errors: json::exception if the snapshot has another form; render.cc catches
// it.
//
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::ctl {

// Formats limits, reservations, how much of its limit each user, cgroup or job
// holds, memory held outside leases, and quotas.
std::string BudgetLines(const nlohmann::json& node);

}  // namespace sluice::ctl
