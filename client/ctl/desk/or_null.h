// A value of --json that is null where there is none.
#pragma once

#include <nlohmann/json.hpp>

namespace sluice::ctl {

template <typename Value>
nlohmann::ordered_json OrNull(bool there, const Value& value) {
  return there ? nlohmann::ordered_json(value) : nullptr;
}

}  // namespace sluice::ctl
