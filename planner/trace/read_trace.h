// Traces from files: MiniMalloc CSV, the paper's request log, PyTorch profiler
// traces and rank profiles. README.md has the formats.
//
// A fault of the input is InvalidArgument in one line that starts with the
// place: "FILE:LINE:COLUMN: what, value, limit, what to do". Nothing of the
// input is believed: counts, sizes, times and their sums have limits, so that
// every sum over a trace is exact in int64.
// Thread safety: pure functions.
#pragma once

#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/trace/named_trace.h"

namespace sluice::planner {

enum class TraceFormat {
  kMiniMalloc,  // id,lower,upper,size
  kRequestLog,  // malloc ID SIZE, free ID
  kPyTorch,     // Chrome JSON with [memory] events
  kProfile,     // a rank's profile, proto/plan/codec.h
};

// "minimalloc", "log", "pytorch", "profile"; nullopt: no such name.
std::optional<TraceFormat> TraceFormatOf(std::string_view name);
std::string_view NameOf(TraceFormat format);

struct TraceOptions {
  std::string file = "-";             // for messages
  std::optional<TraceFormat> format;  // default: by the content
  // Which device's (PyTorch: "cuda:0", "cpu") or rank's ("3") requests, where
  // there are several; "": there is one.
  std::string device;
  std::optional<Bytes> alignment;  // default: 1 for CSV, else 512
};

// Read as a stream: memory grows with the requests kept, not with the file
// (but for kProfile, which proto/plan decodes whole, up to 256 MiB).
absl::StatusOr<NamedTrace> ReadTrace(std::istream& in,
                                     const TraceOptions& options);

// The input's rows in input order, `offset` added; rows of our own
// (id,lower,upper,size) where the input was no CSV. One offset a buffer.
std::string PlanCsv(const NamedTrace& named, const std::vector<Bytes>& offsets);

}  // namespace sluice::planner
