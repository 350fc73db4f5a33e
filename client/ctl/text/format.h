// Formats amounts for people, and fields of the daemon's snapshot. What reads a
// field throws nlohmann::json::exception if the snapshot has another form.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace sluice::ctl {

// Formats "36 MiB", or "-" for a negative amount (unknown, unlimited).
std::string Size(int64_t bytes);
// Formats seconds as FormatSpan does.
std::string Span(double seconds);
// Formats "12,345".
std::string Count(double value);
// Formats "2.3026".
std::string Loss(double value);
// Formats "#####.....  50 %" with ten characters for the bar.
std::string Bar(double part, double whole);

// Returns the number, or -1 for null, which Size formats as "-".
int64_t Number(const nlohmann::json& from, const char* key);
std::string Text(const nlohmann::json& from, const char* key);
// Formats a field in seconds.
std::string SpanOf(const nlohmann::json& from, const char* key);
// Formats a number by `format`, and null as "-".
std::string Optional(const nlohmann::json& value,
                     const std::function<std::string(double)>& format);
// Formats the fields `by` and `age_s` as "root, 3 min ago".
std::string ByWhom(const nlohmann::json& from);
// Formats the object on one line, as --json prints it. Bytes that are not UTF-8
// are replaced.
std::string JsonLine(const auto& object) {
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace sluice::ctl
