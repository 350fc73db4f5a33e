// Reads fields of the daemon's snapshot. All functions throw
// nlohmann::json::exception if the snapshot has another form. Thread safety:
// pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace sluice::ctl {

// Returns the number, or -1 for null, which Size formats as "-".
inline int64_t Number(const nlohmann::json& from, const char* key) {
  return from.at(key).is_null() ? -1 : from.at(key).get<int64_t>();
}

inline std::string Text(const nlohmann::json& from, const char* key) {
  return from.at(key).get<std::string>();
}

// Formats a number by `format`, and null as "-".
inline std::string Optional(const nlohmann::json& value,
                            const std::function<std::string(double)>& format) {
  return value.is_null() ? "-" : format(value.get<double>());
}

}  // namespace sluice::ctl
