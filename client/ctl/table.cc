#include "client/ctl/table.h"

#include <algorithm>
#include <utility>

#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::ctl {

size_t Width(const std::string& text) {
  // Bytes that do not continue a character.
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void Table::Add(std::vector<std::string> cells) {
  SLUICE_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = Printable(std::move(cell));
  rows_.push_back(std::move(cells));
}

std::string Table::Line(const std::vector<std::string>& cells,
                        const std::vector<size_t>& widths) const {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string fill(widths[i] - Width(cells[i]), ' ');
    if (i > 0) line += "  ";
    line +=
        columns_[i].align == Align::kRight ? fill + cells[i] : cells[i] + fill;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string Table::Text() const {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = Width(titles[i]);
    for (const auto& row : rows_) width = std::max(width, Width(row[i]));
    widths.push_back(width);
  }
  std::string text = Line(titles, widths);
  for (const auto& row : rows_) text += Line(row, widths);
  return text;
}

std::string EscapeHtml(const std::string& text) {
  std::string safe;
  for (const char c : Printable(text)) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

}  // namespace sluice::ctl
