// Reads a text input line by line, with line numbers (internal to
// planner/trace).
//
// Thread safety: one owner.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "planner/trace/builder.h"

namespace sluice::planner {

// Limit of a line's length. No supported format has longer lines, and the limit
// bounds memory.
inline constexpr size_t kMaxLineBytes = 64 << 10;

class Lines {
 public:
  // `in` must outlive the object.
  Lines(std::istream& in, std::string file) : in_(in) {
    place_.file = std::move(file);
  }

  // Reads the next line that is not blank, without its end, a trailing CR, or a
  // byte order mark. Returns false at the end or on an error (status()).
  bool Next();
  const std::string& line() const { return line_; }
  int64_t number() const { return place_.line; }
  const absl::Status& status() const { return status_; }

  // Return InvalidArgument with the place of `part`, a view into the current
  // line, or of the whole line.
  absl::Status Wrong(const std::string& text) const;
  absl::Status Wrong(std::string_view part, const std::string& text) const;

 private:
  bool Get();

  std::istream& in_;
  std::string line_;
  Place place_;
  absl::Status status_;
};

std::string_view Trimmed(std::string_view text);
// Returns the fields between commas, trimmed, as views into `line`.
std::vector<std::string_view> Fields(std::string_view line);
// Returns the words between blanks, as views into `line`.
std::vector<std::string_view> Words(std::string_view line);

}  // namespace sluice::planner
