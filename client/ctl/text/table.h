// Formats text tables, with columns as wide as their widest cell and two blanks
// between, and lines that fit a terminal.
// Thread safety: one owner.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::ctl {

// The most columns of `status` and other output about a running daemon.
inline constexpr size_t kTerminalColumns = 80;

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
  // which begin with the first `keys` columns again. Wrapped breaks what is
  // still too wide: the last column's text, or a single cell.
  std::string Text(size_t columns, size_t keys) const;

 private:
  std::string Line(const std::vector<std::string>& cells,
                   const std::vector<size_t>& shown,
                   const std::vector<size_t>& widths) const;

  struct Column {
    std::string title;
    bool right;
  };
  std::vector<Column> columns_;
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
