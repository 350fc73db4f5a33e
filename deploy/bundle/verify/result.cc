#include "deploy/bundle/verify/result.h"

namespace sluice::verify {

using nlohmann::json;

const char* Name(Status status) {
  switch (status) {
    case Status::kPassed:
      return "passed";
    case Status::kFailed:
      return "failed";
    case Status::kSkipped:
      return "skipped";
  }
  return "?";
}

json ToJson(const Result& result) {
  return {{"name", result.name},         {"status", Name(result.status)},
          {"seconds", result.seconds},   {"value", result.value},
          {"expected", result.expected}, {"reason", result.reason}};
}

Result FromJson(const json& json) {
  Result result;
  if (!json.is_object() || !json.contains("status")) {
    result.reason = "it left no result";
    return result;
  }
  const std::string status = json.value("status", "");
  if (status == Name(Status::kPassed)) result.status = Status::kPassed;
  if (status == Name(Status::kSkipped)) result.status = Status::kSkipped;
  result.value = json.value("value", nlohmann::json());
  result.expected = json.value("expected", "");
  result.reason = json.value("reason", "");
  return result;
}

Result FromJson(const json& json, const std::string& how) {
  Result result = FromJson(json);
  const bool said_why = json.is_object() && result.status == Status::kFailed;
  result.reason = (said_why ? result.reason + "; " : "") + how;
  result.status = Status::kFailed;
  return result;
}

std::string LastLine(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t before = text.rfind('\n', end);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return text.substr(begin, end + 1 - begin);
}

}  // namespace sluice::verify
