#include "planner/trace/readers.h"

#include <fmt/format.h>

#include <utility>

namespace sluice::planner {
namespace {

constexpr std::string_view kBlanks = " \t\r";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

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

std::string CleanName(std::string name) {
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == ',') c = '?';
  }
  return name;
}

// Not std::getline, which would read a line of any length.
bool Lines::Get() {
  line_.clear();
  std::streambuf& from = *in_.rdbuf();
  for (int c = from.sbumpc();; c = from.sbumpc()) {
    if (c == std::char_traits<char>::eof()) return !line_.empty();
    if (c == '\n') return true;
    if (line_.size() == kMaxLineBytes) {
      ++place_.line;
      status_ = At(place_, fmt::format("a line of more than {} bytes: is this "
                                       "a text file?",
                                       kMaxLineBytes));
      return false;
    }
    line_.push_back(static_cast<char>(c));
  }
}

bool Lines::Next() {
  while (status_.ok() && Get()) {
    ++place_.line;
    if (place_.line == 1 && line_.starts_with(kByteOrderMark)) {
      line_.erase(0, kByteOrderMark.size());
    }
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    if (!Trimmed(line_).empty()) return true;
  }
  return false;
}

absl::Status Lines::Wrong(const std::string& text) const {
  return At(place_, text);
}

absl::Status Lines::Wrong(std::string_view part,
                          const std::string& text) const {
  Place place = place_;
  place.column = part.data() - line_.data() + 1;
  return At(place, text);
}

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return text.substr(0, 0);
  const size_t last = text.find_last_not_of(kBlanks);
  return text.substr(first, last - first + 1);
}

std::vector<std::string_view> Fields(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const size_t comma = line.find(',');
    fields.push_back(Trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  for (;;) {
    line = Trimmed(line);
    if (line.empty()) return words;
    const size_t end = line.find_first_of(kBlanks);
    words.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return words;
    line.remove_prefix(end);
  }
}

}  // namespace sluice::planner
