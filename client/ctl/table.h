// Text tables: columns as wide as their widest cell, two blanks between.
//
// Thread safety: one owner.
#pragma once

#include <string>
#include <vector>

namespace sluice::ctl {

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
  std::string Text() const;

 private:
  std::string Line(const std::vector<std::string>& cells,
                   const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Visible characters of UTF-8 text.
size_t Width(const std::string& text);

// Printable, and fit to stand inside HTML and SVG, attributes included.
std::string EscapeHtml(const std::string& text);

}  // namespace sluice::ctl
