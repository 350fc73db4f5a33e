// What `budget` shows.
//
// Errors: json::exception where the snapshot is of another form, as in
// render.cc, which catches it.
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::ctl {

// The limits that are set, what is reserved, what each user, cgroup or job
// holds of its limit, what is held outside leases, and quotas.
std::string BudgetLines(const nlohmann::json& node);

}  // namespace sluice::ctl
