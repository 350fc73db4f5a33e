// Formats the speed that the daemon uses for each link, and the speed's source.
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sluice::ctl {

// Formats "24.00 GB/s", or "-" for 0.
std::string Speed(double bytes_per_second);

// Format the links of the snapshot `node` (daemon/README.md), one per line.
// Throw nlohmann::json::exception if `node` has another form.
std::string RenderLinks(const nlohmann::json& node);
// Empty if no measurement is stored.
std::string RenderMeasuredLinks(const nlohmann::json& node);

}  // namespace sluice::ctl
