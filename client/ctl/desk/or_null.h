// Converts an optional value to JSON: null if it is not set.
#pragma once

#include <nlohmann/json.hpp>

namespace sluice::ctl {

nlohmann::ordered_json OrNull(bool there, const auto& value) {
  return there ? nlohmann::ordered_json(value) : nullptr;
}

}  // namespace sluice::ctl
