#include "planner/trace/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace sluice::planner {

absl::Status TraceBuilder::Add(std::string name, int64_t lower, int64_t upper,
                               int64_t bytes) {
  if (size() == plan::kMaxBuffers) {
    return absl::InvalidArgumentError(
        fmt::format("more than {} buffers, the most a plan can have: cut the "
                    "trace to one iteration",
                    plan::kMaxBuffers));
  }
  const int64_t unit = out_.trace.alignment.count();
  if (bytes > kMaxTraceBytes - unit ||
      total_ > kMaxTraceBytes - RoundUp(Bytes(bytes), Bytes(unit)).count()) {
    return absl::InvalidArgumentError(
        fmt::format("size = {} makes the sizes sum to more than {} bytes, the "
                    "most a trace can have: is its unit bytes?",
                    bytes, kMaxTraceBytes));
  }
  total_ += RoundUp(Bytes(bytes), Bytes(unit)).count();
  out_.trace.buffers.push_back({.id = static_cast<int64_t>(size()),
                                .lower = lower,
                                .upper = upper,
                                .size = Bytes(bytes)});
  out_.names.push_back(std::move(name));
  return absl::OkStatus();
}

NamedTrace TraceBuilder::Take(int64_t end) {
  out_.trace.end = end;
  for (plan::Buffer& buffer : out_.trace.buffers) {
    if (buffer.upper == kStillAlive) buffer.upper = end;
  }
  return std::move(out_);
}

std::string Quoted(std::string_view text) {
  constexpr size_t kMost = 40;
  std::string shown(text.substr(0, kMost));
  for (char& c : shown) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) c = '?';
  }
  return "'" + shown + (text.size() > kMost ? "…'" : "'");
}

absl::Status At(const Place& place, const std::string& text) {
  std::string where = place.file;
  if (place.line > 0) where += fmt::format(":{}", place.line);
  if (place.column > 0) where += fmt::format(":{}", place.column);
  return absl::InvalidArgumentError(where + ": " + text);
}

bool ParseInt(std::string_view text, int64_t* value) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && at == end;
}

}  // namespace sluice::planner
