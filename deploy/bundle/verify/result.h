// The result of a check: one row of the report.
// Thread safety: values.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace sluice::verify {

// A skipped check never counts as passed.
enum class Status { kPassed, kFailed, kSkipped };

struct Result {
  std::string name;
  Status status = Status::kFailed;
  double seconds = 0;
  nlohmann::json value;
  std::string expected;
  std::string reason;  // empty if it passed
  // false: the user did not request it, so it does not count
  bool asked = true;
};

inline Result Passed(nlohmann::json value, std::string expected) {
  return {.status = Status::kPassed,
          .value = std::move(value),
          .expected = std::move(expected)};
}
inline Result Failed(nlohmann::json value, std::string expected,
                     std::string reason) {
  return {.status = Status::kFailed,
          .value = std::move(value),
          .expected = std::move(expected),
          .reason = std::move(reason)};
}
inline Result Failed(nlohmann::json value, std::string expected,
                     const absl::Status& why) {
  return Failed(std::move(value), std::move(expected),
                std::string(why.message()));
}
inline Result Skipped(std::string reason) {
  return {.status = Status::kSkipped, .reason = std::move(reason)};
}

const char* Name(Status status);
// {name, status, seconds, value, expected, reason}
nlohmann::json ToJson(const Result& result);
// Returns a failed result if `json` is no result.
Result FromJson(const nlohmann::json& json);
// Returns the failed result of a process that ended badly: `how`, after the
// reason that it wrote itself.
Result FromJson(const nlohmann::json& json, const std::string& how);

// Returns the last line of a program's output that is not empty, which usually
// has the reason of a failure; "" if there is none.
std::string LastLine(const std::string& text);

}  // namespace sluice::verify
