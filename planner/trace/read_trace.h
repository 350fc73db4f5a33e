// Reads traces from files: MiniMalloc CSV, the paper's request log, PyTorch
// profiler traces and rank profiles. README.md has the formats.
//
// An error in the input is InvalidArgument in one line that starts with the
// place: "FILE:LINE:COLUMN: what, value, limit, what to do". Counts, sizes,
// times and their sums have limits, so that every sum over a trace is exact in
// int64.
#pragma once

#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// A trace, with names from its file for messages and output.
struct NamedTrace {
  plan::Trace trace;
  // names[k] is the name of trace.buffers[k], without control characters. The
  // second allocation of a request log's id 7 is named "7#2".
  std::vector<std::string> names;
  // The unit of trace time, for output: "requests", "lines", "time".
  std::string time_unit = "time";
  // The source, for output: "MiniMalloc CSV", "PyTorch trace, cuda:0".
  std::string source;
  // A CSV's header and rows, without an `offset` column. PlanCsv repeats them.
  std::string csv_header;
  std::vector<std::string> csv_rows;
  // Notes for the user about assumptions made where the input is ambiguous.
  std::vector<std::string> notes;
};

enum class TraceFormat {
  kMiniMalloc,  // id,lower,upper,size
  kRequestLog,  // malloc ID SIZE, free ID
  kPyTorch,     // Chrome JSON with [memory] events
  kProfile,     // a rank's profile, proto/plan/codec.h
};

// The formats' names are "minimalloc", "log", "pytorch" and "profile".
std::optional<TraceFormat> TraceFormatOf(std::string_view name);
std::string_view NameOf(TraceFormat format);

struct TraceOptions {
  std::string file = "-";             // the input's name in messages
  std::optional<TraceFormat> format;  // default: detected from the content
  // The device (PyTorch: "cuda:0", "cpu") or rank ("3") to read. It may be ""
  // if the input has only one.
  std::string device;
  std::optional<Bytes> alignment;  // default: 1 for CSV, else 512
};

// Reads a trace from a stream. Memory grows with the number of requests; for
// kProfile, with the size of the input, which may be 256 MiB.
absl::StatusOr<NamedTrace> ReadTrace(std::istream& in,
                                     const TraceOptions& options);

// Returns the plan as CSV, with one row and one entry of `offsets` per buffer:
// the input's rows if it was a CSV, else id,lower,upper,size; then `offset`.
std::string PlanCsv(const NamedTrace& named, const std::vector<Bytes>& offsets);

}  // namespace sluice::planner
