// Reads MiniMalloc's CSV: columns id, lower, upper and size in any order, with
// half-open lifetimes.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>

#include "absl/strings/ascii.h"
#include "planner/trace/readers.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

constexpr size_t kNoColumn = SIZE_MAX;

// Indices of the columns. An `offset` column, from an earlier plan, is dropped.
struct Columns {
  size_t id = kNoColumn, lower = kNoColumn, upper = kNoColumn, size = kNoColumn;
  size_t offset = kNoColumn, alignment = kNoColumn, gaps = kNoColumn;
  size_t count = 0;
};

class CsvReader {
 public:
  CsvReader(std::istream& in, const TraceOptions& options, Bytes alignment)
      : lines_(in, options.file), builder_(alignment) {}

  absl::StatusOr<NamedTrace> Read() {
    if (!lines_.Next()) {
      SLUICE_RETURN_IF_ERROR(lines_.status());
      return lines_.Wrong("is empty: expected a header id,lower,upper,size");
    }
    SLUICE_RETURN_IF_ERROR(ReadHeader());
    builder_.out().csv_header = WithoutOffset(Fields(lines_.line()));
    while (lines_.Next()) SLUICE_RETURN_IF_ERROR(ReadRow());
    SLUICE_RETURN_IF_ERROR(lines_.status());
    builder_.out().source = "MiniMalloc CSV";
    ApplyAlignment();
    return builder_.Take(end_);
  }

 private:
  absl::Status ReadHeader() {
    const std::vector<std::string_view> fields = Fields(lines_.line());
    columns_.count = fields.size();
    const std::pair<const char*, size_t*> known[] = {
        {"id", &columns_.id},         {"lower", &columns_.lower},
        {"upper", &columns_.upper},   {"size", &columns_.size},
        {"offset", &columns_.offset}, {"alignment", &columns_.alignment},
        {"gaps", &columns_.gaps}};
    for (size_t k = 0; k < fields.size(); ++k) {
      const std::string called = absl::AsciiStrToLower(std::string(fields[k]));
      for (const auto& [name, column] : known) {
        if (called != name) continue;
        if (*column != kNoColumn) {
          return lines_.Wrong(fields[k],
                              fmt::format("column '{}' occurs twice", name));
        }
        *column = k;
      }
    }
    for (const auto& [name, column] : std::span(known).first(4)) {
      if (*column == kNoColumn) {
        return lines_.Wrong(
            fmt::format("column '{}' is missing from the header {}: needed "
                        "are id, lower, upper and size, in any order",
                        name, Quoted(lines_.line())));
      }
    }
    return absl::OkStatus();
  }

  // Reads a row's alignment. The trace gets the largest alignment of its rows.
  absl::Status ReadAlignment(const std::vector<std::string_view>& fields) {
    if (columns_.alignment == kNoColumn) return absl::OkStatus();
    const std::string_view field = fields[columns_.alignment];
    int64_t alignment = 0;
    SLUICE_RETURN_IF_ERROR(Integer("alignment", field, &alignment));
    constexpr int64_t kMost = int64_t{1} << 30;
    if (alignment < 1 || alignment > kMost ||
        (alignment & (alignment - 1)) != 0) {
      return lines_.Wrong(
          field, fmt::format("alignment = {}: give a power of two from 1 to {}",
                             alignment, kMost));
    }
    const bool first = largest_ == 0;
    mixed_ |= !first && alignment != largest_;
    largest_ = std::max(largest_, alignment);
    return absl::OkStatus();
  }

  void ApplyAlignment() {
    plan::Trace& trace = builder_.out().trace;
    if (largest_ <= trace.alignment.count()) return;
    trace.alignment = Bytes(largest_);
    if (!mixed_) return;
    builder_.out().notes.push_back(fmt::format(
        "rows have different alignments: all offsets are multiples of {}, the "
        "largest, and sizes are rounded up to it",
        largest_));
  }

  absl::Status ReadRow() {
    const std::vector<std::string_view> fields = Fields(lines_.line());
    if (fields.size() != columns_.count) {
      return lines_.Wrong(fmt::format("{} fields in {}, the header has {}",
                                      fields.size(), Quoted(lines_.line()),
                                      columns_.count));
    }
    SLUICE_RETURN_IF_ERROR(CheckId(fields[columns_.id]));
    int64_t lower = 0, upper = 0, size = 0;
    SLUICE_RETURN_IF_ERROR(Time("lower", fields[columns_.lower], &lower));
    SLUICE_RETURN_IF_ERROR(Time("upper", fields[columns_.upper], &upper));
    SLUICE_RETURN_IF_ERROR(ReadAlignment(fields));
    if (columns_.gaps != kNoColumn && !fields[columns_.gaps].empty()) {
      return lines_.Wrong(fields[columns_.gaps],
                          "a lifetime with gaps is not supported: split such a "
                          "buffer into one row per lifetime");
    }
    SLUICE_RETURN_IF_ERROR(Integer("size", fields[columns_.size], &size));
    if (lower >= upper) {
      return lines_.Wrong(
          fields[columns_.upper],
          fmt::format("upper = {} is not above lower = {}: a buffer is alive "
                      "in [lower, upper), at least one unit of time",
                      upper, lower));
    }
    if (size < 0) {
      return lines_.Wrong(
          fields[columns_.size],
          fmt::format("size = {} is below 0: give bytes, at least 0", size));
    }
    SLUICE_RETURN_IF_ERROR(lines_.Placed(
        fields[columns_.size],
        builder_.Add(std::string(fields[columns_.id]), lower, upper, size)));
    end_ = builder_.size() == 1 ? upper : std::max(end_, upper);
    builder_.out().csv_rows.push_back(WithoutOffset(fields));
    return absl::OkStatus();
  }

  absl::Status CheckId(std::string_view id) {
    if (id.empty()) return lines_.Wrong(id, "id is empty: give each row one");
    for (const char c : id) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
        return lines_.Wrong(id, fmt::format("id {} has a control character: "
                                            "is this a text file?",
                                            Quoted(id)));
      }
    }
    if (!ids_.insert(std::string(id)).second) {
      return lines_.Wrong(
          id, fmt::format("id {} occurs twice: ids name the plan's rows, so "
                          "each has one",
                          Quoted(id)));
    }
    return absl::OkStatus();
  }

  absl::Status Integer(const char* column, std::string_view text,
                       int64_t* value) {
    if (ParseInt(text, value)) return absl::OkStatus();
    return lines_.Wrong(
        text, fmt::format("{} = {} is no whole number between {} and {}",
                          column, Quoted(text), INT64_MIN, INT64_MAX));
  }

  absl::Status Time(const char* column, std::string_view text, int64_t* value) {
    SLUICE_RETURN_IF_ERROR(Integer(column, text, value));
    if (*value >= -kMaxTraceTime && *value <= kMaxTraceTime) {
      return absl::OkStatus();
    }
    return lines_.Wrong(text,
                        fmt::format("{} = {} is beyond {}, the latest time a "
                                    "trace can have: count requests instead",
                                    column, *value, kMaxTraceTime));
  }

  std::string WithoutOffset(const std::vector<std::string_view>& fields) {
    std::string row;
    const char* comma = "";
    for (size_t k = 0; k < fields.size(); ++k) {
      if (k == columns_.offset) continue;
      row += std::exchange(comma, ",");
      row += fields[k];
    }
    return row;
  }

  Lines lines_;
  TraceBuilder builder_;
  Columns columns_;
  std::unordered_set<std::string> ids_;
  int64_t end_ = 0;
  int64_t largest_ = 0;  // largest alignment of a row
  bool mixed_ = false;
};

}  // namespace

absl::StatusOr<NamedTrace> ReadCsvTrace(std::istream& in,
                                        const TraceOptions& options,
                                        Bytes alignment) {
  return CsvReader(in, options, alignment).Read();
}

}  // namespace sluice::planner
