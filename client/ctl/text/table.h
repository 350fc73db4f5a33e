// Text tables: columns as wide as their widest cell, two blanks between; and
// lines that fit a terminal.
//
// Thread safety: one owner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::ctl {

// What `status` and what else is told of a running daemon fits.
inline constexpr size_t kTerminalColumns = 80;

class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell a column. Control characters become '?': a name must not steer
  // the operator's terminal.
  void Add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  std::string Text() const { return Text(SIZE_MAX, 1); }
  // Columns beyond `columns` characters follow in tables below it that begin
  // with the first `keys` columns again. Text in the last column, and a cell
  // that alone is too wide, are for Wrapped.
  std::string Text(size_t columns, size_t keys) const;

 private:
  std::string Line(const std::vector<std::string>& cells,
                   const std::vector<size_t>& shown,
                   const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Visible characters of UTF-8 text.
size_t Width(const std::string& text);
// Its first `columns` characters, none of which is cut.
std::string_view FirstOf(std::string_view line, size_t columns);
// `text`, its lines broken so that none has more than `columns` characters,
// between words where it can be; what goes on is indented.
std::string Wrapped(const std::string& text, size_t columns = kTerminalColumns);

// Printable, and fit to stand inside HTML and SVG, attributes included.
std::string EscapeHtml(const std::string& text);

}  // namespace sluice::ctl
