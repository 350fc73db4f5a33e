// What a check says: one row of the report.
//
// Thread safety: values.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sluice::verify {

// Skipped is never passed.
enum class Status { kPassed, kFailed, kSkipped };

struct Result {
  std::string name;
  Status status = Status::kFailed;
  double seconds = 0;
  nlohmann::json value;
  std::string expected;
  std::string reason;  // empty: it passed
  bool asked = true;   // false: it counts neither way
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
inline Result Skipped(std::string reason) {
  return {.status = Status::kSkipped, .reason = std::move(reason)};
}

const char* Name(Status status);
// {name, status, seconds, value, expected, reason}, and back.
nlohmann::json ToJson(const Result& result);
// Not a result: kFailed, and the reason says so.
Result FromJson(const nlohmann::json& json);
// The result of a process that ended badly, as `how` says: always kFailed. If
// the process gave a reason, that comes first.
Result FromJson(const nlohmann::json& json, const std::string& how);

}  // namespace sluice::verify
