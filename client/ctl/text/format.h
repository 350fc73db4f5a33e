// Formats amounts, tables and fields of the daemon's snapshot for people.
// Functions that read a field throw nlohmann::json::exception if it is missing
// or of another type. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::ctl {

// Formats "36 MiB", or "-" for a negative amount (unknown, unlimited).
std::string Size(int64_t bytes);
std::string Span(double seconds);
// Formats "12,345".
std::string Count(double value);
// Formats "24.00 GB/s", or "-" for 0.
std::string Speed(double bytes_per_second);
std::string Loss(double value);
// Formats a fraction as "12.5 %".
std::string Percent(double part);
// Formats "#####.....  50 %" with ten characters for the bar.
std::string Bar(double part, double whole);

// Returns the number, or -1 for null, which Size formats as "-".
int64_t Number(const nlohmann::json& from, const char* key);
std::string Text(const nlohmann::json& from, const char* key);
std::string SizeOf(const nlohmann::json& from, const char* key);
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

// The width, in characters, of `status` and other output about a daemon.
inline constexpr size_t kTerminalColumns = 80;

// A table with columns as wide as their widest cell and two blanks between.
// Thread safety: one owner.
class Table {
 public:
  // The columns' titles. A column is aligned to the right if '>' precedes its
  // title.
  explicit Table(std::initializer_list<std::string_view> columns);

  // Adds a row with one cell per column. Control characters become '?': a name
  // must not control the operator's terminal.
  void Add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  std::string Text() const { return Text(SIZE_MAX, 1); }
  // Columns that do not fit into `columns` characters follow in further tables,
  // which begin with the first `keys` columns again. Text that is still too
  // wide (the last column's, or a single cell's) is broken into lines.
  std::string Text(size_t columns, size_t keys) const;

 private:
  std::vector<std::string> titles_;
  std::vector<bool> right_;  // aligned to the right
  std::vector<std::vector<std::string>> rows_;
};

// Returns the number of visible characters of UTF-8 text.
size_t Width(const std::string& text);
// Returns the first `columns` characters; never splits a UTF-8 character.
std::string_view FirstOf(std::string_view line, size_t columns);
// Breaks lines at `columns` characters, between words where possible; continued
// lines are indented.
std::string Wrapped(const std::string& text, size_t columns = kTerminalColumns);

// Returns printable text, escaped for HTML and SVG, attributes included.
std::string EscapeHtml(const std::string& text);

}  // namespace sluice::ctl
