// Collects the buffers of a trace and checks limits (internal to
// planner/trace).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "planner/trace/named_trace.h"
#include "proto/plan/codec.h"

namespace sluice::planner {

// Limit of one buffer and of a whole trace, so that sums over a trace stay
// exact in int64.
inline constexpr int64_t kMaxTraceBytes = int64_t{1} << 60;
inline constexpr int64_t kMaxTraceTime = plan::kMaxTime;  // either sign

class TraceBuilder {
 public:
  explicit TraceBuilder(Bytes alignment) { out_.trace.alignment = alignment; }

  size_t size() const { return out_.names.size(); }
  NamedTrace& out() { return out_; }

  // Adds a buffer. InvalidArgument without a place, which the reader adds.
  // Close can set `upper` later, for a buffer that is not freed yet.
  absl::Status Add(std::string name, int64_t lower, int64_t upper,
                   int64_t bytes);
  void Close(size_t buffer, int64_t upper) {
    out_.trace.buffers[buffer].upper = upper;
  }

  // Sets the end, also as `upper` of buffers that were never freed, and returns
  // the trace.
  NamedTrace Take(int64_t end);

 private:
  NamedTrace out_;
  int64_t total_ = 0;
};

// `upper` of a buffer that has not been freed yet.
inline constexpr int64_t kStillAlive = INT64_MIN;

// Returns `text` for messages: in quotes, control characters as '?', shortened.
std::string Quoted(std::string_view text);

// At returns InvalidArgument "FILE:LINE:COLUMN: text".
struct Place {
  std::string file;
  int64_t line = 0;
  int64_t column = 0;  // 0: the whole line
};
absl::Status At(const Place& place, const std::string& text);

// Parses a decimal int64 with nothing around it.
bool ParseInt(std::string_view text, int64_t* value);

}  // namespace sluice::planner
