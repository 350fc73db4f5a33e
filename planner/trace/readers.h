// What the readers of all formats share (internal to planner/trace).
#pragma once

#include <charconv>
#include <cstdint>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/trace/read_trace.h"
#include "proto/plan/codec.h"

namespace sluice::planner {

// A reader of one format; README.md specifies the formats. `in` is at the first
// byte of the input. `alignment` becomes the trace's alignment.
using TraceReader = absl::StatusOr<NamedTrace>(std::istream& in,
                                               const TraceOptions& options,
                                               Bytes alignment);
TraceReader ReadCsvTrace, ReadRequestLog, ReadPyTorchTrace, ReadProfile;

// Limit of the size of a buffer, and of all sizes of a trace together, so that
// sums over a trace are exact in int64.
inline constexpr int64_t kMaxTraceBytes = int64_t{1} << 60;
// Largest absolute value of a time.
inline constexpr int64_t kMaxTraceTime = plan::kMaxTime;
// Value of `upper` for a buffer that has not been freed yet.
inline constexpr int64_t kStillAlive = INT64_MIN;

// Collects the buffers of a trace and checks limits.
class TraceBuilder {
 public:
  explicit TraceBuilder(Bytes alignment) { out_.trace.alignment = alignment; }

  size_t size() const { return out_.names.size(); }
  NamedTrace& out() { return out_; }

  // Adds a buffer. If `upper` is kStillAlive, Close or Take sets it later. The
  // message of InvalidArgument has no line number; the caller adds it.
  absl::Status Add(std::string name, int64_t lower, int64_t upper,
                   int64_t bytes);
  void Close(size_t buffer, int64_t upper) {
    out_.trace.buffers[buffer].upper = upper;
  }

  // Sets the trace's end, which is also the `upper` of buffers that were never
  // freed, and returns the trace.
  NamedTrace Take(int64_t end);

 private:
  NamedTrace out_;
  int64_t total_ = 0;
};

struct Place {
  std::string file;
  int64_t line = 0;    // 0 means the whole file
  int64_t column = 0;  // 0 means the whole line
};
// Returns InvalidArgument "FILE:LINE:COLUMN: text".
absl::Status At(const Place& place, const std::string& text);

// Returns `text` in quotes for messages, shortened, with '?' for characters
// other than printable ASCII.
std::string Quoted(std::string_view text);

// Replaces the characters of a name that a row of the plan cannot have:
// control characters, and commas, which would split the row.
std::string CleanName(std::string name);

// Parses an integer. Returns false if `text` contains anything else.
template <typename T>
bool ParseInt(std::string_view text, T* value, int base = 10) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *value, base);
  return error == std::errc() && at == end;
}

// Limit of a line's length, which bounds memory.
inline constexpr size_t kMaxLineBytes = 64 << 10;

// Reads a text input line by line, with line numbers.
class Lines {
 public:
  // `in` must outlive the object.
  Lines(std::istream& in, std::string file)
      : in_(in), place_{.file = std::move(file)} {}

  // Reads the next line that is not blank, without LF, CRLF and byte order
  // mark. Returns false at the end or on an error (status()).
  bool Next();
  const std::string& line() const { return line_; }
  int64_t number() const { return place_.line; }
  const absl::Status& status() const { return status_; }

  // Return InvalidArgument with the place of `part`, a view into the current
  // line, or of the whole line.
  absl::Status Wrong(const std::string& text) const;
  absl::Status Wrong(std::string_view part, const std::string& text) const;
  // Returns `status` with the place of `part` if it is an error.
  absl::Status Placed(std::string_view part, const absl::Status& status) const {
    return status.ok() ? status : Wrong(part, std::string(status.message()));
  }

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
