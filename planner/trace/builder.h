// Collects a trace's buffers within the limits (internal to planner/trace).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "planner/trace/named_trace.h"
#include "proto/plan/codec.h"

namespace sluice::planner {

// One buffer's and a whole trace's: sums over a trace stay exact in int64.
inline constexpr int64_t kMaxTraceBytes = int64_t{1} << 60;
inline constexpr int64_t kMaxTraceTime = plan::kMaxTime;  // either sign

class TraceBuilder {
 public:
  explicit TraceBuilder(Bytes alignment) { out_.trace.alignment = alignment; }

  size_t size() const { return out_.names.size(); }
  NamedTrace& out() { return out_; }

  // InvalidArgument without a place: the reader knows it. Close may set `upper`
  // later, for a buffer that is not freed yet.
  absl::Status Add(std::string name, int64_t lower, int64_t upper,
                   int64_t bytes);
  void Close(size_t buffer, int64_t upper) {
    out_.trace.buffers[buffer].upper = upper;
  }

  // Sets the end, and gives what was never freed the end as its upper.
  NamedTrace Take(int64_t end);

 private:
  NamedTrace out_;
  int64_t total_ = 0;
};

// Upper of a buffer that has not been freed yet.
inline constexpr int64_t kStillAlive = INT64_MIN;

// For messages: control characters shown as '?', never long, in quotes.
std::string Quoted(std::string_view text);

// InvalidArgument "FILE:LINE:COLUMN: text".
struct Place {
  std::string file;
  int64_t line = 0;
  int64_t column = 0;  // 0: the whole line
};
absl::Status At(const Place& place, const std::string& text);

// A decimal int64 and nothing else around it.
bool ParseInt(std::string_view text, int64_t* value);

}  // namespace sluice::planner
