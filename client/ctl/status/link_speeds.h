// What speed the daemon goes by for each link, and from where it has that.
//
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::ctl {

// "24.00 GB/s"; "-" for none.
std::string Speed(double bytes_per_second);

// One line per link of the snapshot `node` (daemon/README.md), and what needs a
// word of it. Both throw nlohmann::json::exception where `node` is of another
// form.
std::string RenderLinks(const nlohmann::json& node);
// The measurement that is kept; empty where none is.
std::string RenderMeasuredLinks(const nlohmann::json& node);

}  // namespace sluice::ctl
