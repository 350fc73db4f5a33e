// The output of `budget`.
//
// Errors: json::exception if the snapshot has another form; render.cc catches
// it.
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::ctl {

// Limits, reservations, what each user, cgroup or job holds of its limit, what
// is held outside leases, and quotas.
std::string BudgetLines(const nlohmann::json& node);

}  // namespace sluice::ctl
