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

// Of a snapshot (daemon/README.md); both throw nlohmann::json::exception where
// it is of another form. A line a link, and what of it needs a word.
std::string RenderLinks(const nlohmann::json& node);
// Nothing unless what was measured is kept.
std::string RenderMeasuredLinks(const nlohmann::json& node);

}  // namespace sluice::ctl
