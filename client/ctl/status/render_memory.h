// Formats the parts of `status` about memory that are no tables: memory held
// outside leases, and the kind of pinned host memory.
//
// Errors: json::exception if the snapshot has another form; render.cc catches
// it.
//
// Thread safety: pure functions.
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

}  // namespace sluice::ctl
