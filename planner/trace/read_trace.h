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

// A trace with the names from its file. The planner plans `trace`; messages and
// output use the names.
struct NamedTrace {
  plan::Trace trace;
  // names[k] is the name of trace.buffers[k], without control characters. Names
  // are distinct if the format's names are (a request log's id that is
  // allocated again after its free becomes "7#2").
  std::vector<std::string> names;
  // The unit of trace time, for output: "requests", "lines", "time".
  std::string time_unit = "time";
  // The source, for output: "MiniMalloc CSV", "PyTorch trace, cuda:0".
  std::string source;
  // A CSV's header and rows as in the file, without line ends and without its
  // own `offset` column. The output repeats them.
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

// Reads a stream. Memory grows with the number of requests and not with the
// file (except for kProfile, which is decoded as a whole, up to 256 MiB).
absl::StatusOr<NamedTrace> ReadTrace(std::istream& in,
                                     const TraceOptions& options);

// Returns a CSV's rows with an `offset` column added, with one offset per
// buffer. For other formats, returns rows of id,lower,upper,size,offset.
std::string PlanCsv(const NamedTrace& named, const std::vector<Bytes>& offsets);

}  // namespace sluice::planner
