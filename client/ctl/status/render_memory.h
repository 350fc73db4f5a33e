// The part of `status` about memory besides the tables: what is held outside
// leases, and the kind of pinned host memory.
//
// Errors: json::exception if the snapshot has another form; render.cc catches
// it.
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sluice::ctl {

// A section with what is held outside leases of each pool, and what each rank
// reported; empty if nothing is.
std::string RenderOutside(const nlohmann::json& node);
// A line for each process without a session that has memory of the pools; empty
// from a daemon that does not tell.
std::string HolderLines(const nlohmann::json& node);

// Formats ", HOST_NUMA"; empty on sim, or from a daemon that does not tell.
std::string HostKind(const nlohmann::json& node);

}  // namespace sluice::ctl
