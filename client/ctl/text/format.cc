#include "client/ctl/text/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/units.h"

namespace sluice::ctl {

using nlohmann::json;

std::string Size(int64_t bytes) {
  return bytes < 0 ? "-" : FormatBytes(Bytes(bytes));
}

std::string Span(double seconds) { return FormatSpan(absl::Seconds(seconds)); }

std::string Count(double value) {
  std::string text = fmt::format("{:.0f}", std::fabs(value));
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return value < 0 ? "-" + text : text;
}

std::string Speed(double bytes_per_second) {
  if (bytes_per_second <= 0) return "-";
  return bytes_per_second >= 1e9
             ? fmt::format("{:.2f} GB/s", bytes_per_second / 1e9)
             : fmt::format("{:.1f} MB/s", bytes_per_second / 1e6);
}

std::string Loss(double value) { return fmt::format("{:.4f}", value); }

std::string Percent(double part) { return fmt::format("{:.1f} %", 100 * part); }

std::string Bar(double part, double whole) {
  const double share = whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0;
  // A share above 0 is never drawn as empty, nor a share below 1 as full.
  int full = int(share * 10);
  if (share > 0 && share < 1) full = std::clamp(full, 1, 9);
  return fmt::format("{}{} {:3.0f} %", std::string(full, '#'),
                     std::string(10 - full, '.'), 100 * share);
}

int64_t Number(const json& from, const char* key) {
  return from.at(key).is_null() ? -1 : from.at(key).get<int64_t>();
}

std::string Text(const json& from, const char* key) {
  return from.at(key).get<std::string>();
}

std::string SizeOf(const json& from, const char* key) {
  return Size(Number(from, key));
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

// The least width of the last column if it holds text.
constexpr size_t kLeastText = 24;

std::string_view FirstOf(std::string_view line, size_t columns) {
  size_t end = 0;
  for (size_t shown = 0; end < line.size(); ++end) {
    if ((line[end] & 0xc0) != 0x80 && shown++ == columns) break;
  }
  return line.substr(0, end);
}

std::string Wrapped(const std::string& text, size_t columns) {
  std::string wrapped;
  for (absl::string_view rest : absl::StrSplit(text, '\n')) {
    std::string indent = rest.data() == text.data() ? "" : "\n";
    do {
      const size_t room = columns - (indent.size() > 1 ? 2 : 0);
      size_t size = FirstOf({rest.data(), rest.size()}, room).size();
      if (size < rest.size()) {
        const size_t blank = rest.rfind(' ', size);
        if (blank != rest.npos && blank > rest.find_first_not_of(' ')) {
          size = blank;
        }
      }
      wrapped += indent + std::string(rest.substr(0, size));
      rest.remove_prefix(
          std::min(rest.find_first_not_of(' ', size), rest.size()));
      indent = "\n  ";
    } while (!rest.empty());
  }
  return wrapped;
}

size_t Width(const std::string& text) {
  // Counts the bytes that begin a UTF-8 character.
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

Table::Table(std::initializer_list<std::string_view> columns) {
  for (const std::string_view column : columns) {
    right_.push_back(column.starts_with('>'));
    titles_.emplace_back(column.substr(right_.back() ? 1 : 0));
  }
}

void Table::Add(std::vector<std::string> cells) {
  SLUICE_CHECK(cells.size() == titles_.size());
  for (std::string& cell : cells) cell = Printable(std::move(cell));
  rows_.push_back(std::move(cells));
}

std::string Table::Text(size_t columns, size_t keys) const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < titles_.size(); ++i) {
    widths.push_back(Width(titles_[i]));
    for (const auto& row : rows_) {
      widths[i] = std::max(widths[i], Width(row[i]));
    }
  }
  std::string text;
  std::vector<size_t> shown;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    for (const size_t i : shown) {
      const std::string fill(widths[i] - Width(cells[i]), ' ');
      if (i != shown.front()) text += "  ";
      text += right_[i] ? fill + cells[i] : cells[i] + fill;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  };
  const size_t last = titles_.size() - 1;
  for (size_t first = 0, next = 0; first <= last; first = next) {
    shown.resize(first == 0 ? 0 : keys);
    std::iota(shown.begin(), shown.end(), 0);
    size_t used = 0;
    for (const size_t key : shown) used += widths[key] + 2;
    for (; next <= last; used += widths[next++] + 2) {
      const bool is_text = next == last && !right_[next];
      const size_t least =
          is_text ? std::min(widths[next], kLeastText) : widths[next];
      if (next > first && used + least > columns) break;
      shown.push_back(next);
    }
    if (first > 0) text += '\n';
    add_line(titles_);
    for (const auto& row : rows_) add_line(row);
  }
  return text;
}

std::string EscapeHtml(const std::string& text) {
  return absl::StrReplaceAll(
      Printable(text),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

}  // namespace sluice::ctl
