// Collects the buffers of a trace and checks limits (internal to
// planner/trace).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "planner/trace/named_trace.h"
#include "proto/plan/codec.h"

namespace sluice::planner {

// Limit of the size of a buffer, and of all sizes of a trace together, so that
// sums over a trace are exact in int64.
inline constexpr int64_t kMaxTraceBytes = int64_t{1} << 60;
// Limit of a time, positive or negative.
inline constexpr int64_t kMaxTraceTime = plan::kMaxTime;

class TraceBuilder {
 public:
  explicit TraceBuilder(Bytes alignment) { out_.trace.alignment = alignment; }

  size_t size() const { return out_.names.size(); }
  NamedTrace& out() { return out_; }

  // Adds a buffer. `upper` may be kStillAlive if the buffer is not freed yet;
  // Close then sets it later. InvalidArgument: the message has no place in the
  // file, so the reader must add it.
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

// Value of `upper` for a buffer that has not been freed yet.
inline constexpr int64_t kStillAlive = INT64_MIN;

// Returns `text` in quotes for messages, shortened, with '?' for control
// characters.
std::string Quoted(std::string_view text);

// A place in the input. At returns InvalidArgument "FILE:LINE:COLUMN: text".
struct Place {
  std::string file;
  int64_t line = 0;
  int64_t column = 0;  // 0: the whole line
};
absl::Status At(const Place& place, const std::string& text);

// Parses a decimal int64. Returns false if `text` contains anything else.
bool ParseInt(std::string_view text, int64_t* value);

}  // namespace sluice::planner
