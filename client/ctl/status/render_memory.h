// Formats the holders of memory and their limits.
//
// Errors: json::exception if the snapshot has another form; render.cc catches
// it. Thread safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sluice::ctl {

// Formats a section with the memory of each pool that is held outside leases,
// and what each rank reported; empty if there is none.
std::string RenderOutside(const nlohmann::json& node);
// Formats a line for each process without a session that has memory of the
// pools; empty from a daemon that does not report them.
std::string HolderLines(const nlohmann::json& node);

// Formats ", HOST_NUMA"; empty on sim, or from a daemon that does not state it.
std::string HostKind(const nlohmann::json& node);

// Formats the output of `budget`: limits, reservations, how much of its limit
// each user, cgroup or job holds, memory held outside leases, and quotas.
std::string BudgetLines(const nlohmann::json& node);

}  // namespace sluice::ctl
