// What `status` says of memory beside the tables: what is held outside leases,
// and what pinned host memory is.
//
// Errors: json::exception where the snapshot is of another form, as in
// render.cc, which catches it.
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sluice::ctl {

// A section, or nothing: of each pool what is held outside leases, and of each
// rank what it has told of that.
std::string RenderOutside(const nlohmann::json& node);
// ", HOST_NUMA"; nothing on sim, or of a daemon that does not say.
// A line for each process without a session that has memory of the pools; none
// from a daemon that does not say.
std::string HolderLines(const nlohmann::json& node);

std::string HostKind(const nlohmann::json& node);

}  // namespace sluice::ctl
