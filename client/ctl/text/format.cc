#include "client/ctl/text/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "proto/base/span_text.h"
#include "proto/base/units.h"

namespace sluice::ctl {

using nlohmann::json;

std::string Size(int64_t bytes) {
  return bytes < 0 ? "-" : FormatBytes(Bytes(bytes));
}

std::string Span(double seconds) { return FormatSpan(absl::Seconds(seconds)); }

std::string Count(double value) {
  const std::string digits = fmt::format("{:.0f}", std::fabs(value));
  std::string text = value < 0 ? "-" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string Loss(double value) { return fmt::format("{:.4f}", value); }

std::string Bar(double part, double whole) {
  const double share = whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0;
  // A share above 0 is never drawn as empty, nor a share below 1 as full.
  const int full = share > 0 && share < 1
                       ? std::clamp(static_cast<int>(share * 10), 1, 9)
                       : static_cast<int>(share * 10);
  return fmt::format("{}{} {:3.0f} %", std::string(full, '#'),
                     std::string(10 - full, '.'), 100 * share);
}

int64_t Number(const json& from, const char* key) {
  return from.at(key).is_null() ? -1 : from.at(key).get<int64_t>();
}

std::string Text(const json& from, const char* key) {
  return from.at(key).get<std::string>();
}

std::string SpanOf(const json& from, const char* key) {
  return Span(from.at(key).get<double>());
}

std::string Optional(const json& value,
                     const std::function<std::string(double)>& format) {
  return value.is_null() ? "-" : format(value.get<double>());
}

std::string ByWhom(const json& from) {
  const std::string by = Text(from, "by");
  return fmt::format("{}, {} ago", by.empty() ? "an administrator" : by,
                     SpanOf(from, "age_s"));
}

}  // namespace sluice::ctl
