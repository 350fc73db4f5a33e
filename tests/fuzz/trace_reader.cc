// The readers of traces: each format by name, and the detection of the format.
#include <istream>
#include <optional>
#include <streambuf>
#include <string>

#include "planner/trace/read_trace.h"
#include "planner/trace/readers.h"
#include "proto/base/status.h"
#include "tests/fuzz/readers.h"

namespace sluice::fuzz {
namespace {

using planner::NamedTrace;
using planner::TraceFormat;

class Bytewise : public std::streambuf {
 public:
  explicit Bytewise(std::string_view bytes) {
    char* begin = const_cast<char*>(bytes.data());
    setg(begin, begin, begin + bytes.size());
  }
};

absl::StatusOr<NamedTrace> Read(std::string_view bytes,
                                std::optional<TraceFormat> format) {
  Bytewise buffer(bytes);
  std::istream in(&buffer);
  return planner::ReadTrace(in, {.file = "fuzz", .format = format});
}

void CheckTrace(const NamedTrace& named) {
  const size_t n = named.trace.buffers.size();
  SLUICE_CHECK(named.names.size() == n);
  SLUICE_CHECK(named.csv_header.empty() ? named.csv_rows.empty()
                                        : named.csv_rows.size() == n);
  int64_t total = 0;
  for (const plan::Buffer& b : named.trace.buffers) {
    SLUICE_CHECK(b.lower < b.upper && b.upper <= named.trace.end);
    SLUICE_CHECK(b.size >= Bytes(0));
    total += RoundUp(b.size, named.trace.alignment).count();
    SLUICE_CHECK(total <= planner::kMaxTraceBytes);
  }
}

// Checks that a trace, written as a plan and read as a trace again, has the
// same buffers.
void CheckPlan(const NamedTrace& named) {
  const std::string plan =
      planner::PlanCsv(named, std::vector<Bytes>(named.trace.buffers.size()));
  const auto again = Read(plan, TraceFormat::kMiniMalloc);
  SLUICE_CHECK_OK(again.status());
  SLUICE_CHECK(again->trace.buffers.size() == named.trace.buffers.size());
  for (size_t k = 0; k < again->trace.buffers.size(); ++k) {
    const plan::Buffer& a = again->trace.buffers[k];
    const plan::Buffer& b = named.trace.buffers[k];
    SLUICE_CHECK(a.lower == b.lower && a.upper == b.upper && a.size == b.size);
  }
}

}  // namespace

void ReadAsTrace(std::string_view bytes) {
  for (const std::optional<TraceFormat> format :
       {std::optional<TraceFormat>(), std::optional(TraceFormat::kMiniMalloc),
        std::optional(TraceFormat::kRequestLog),
        std::optional(TraceFormat::kPyTorch),
        std::optional(TraceFormat::kProfile)}) {
    const auto named = Read(bytes, format);
    if (!named.ok()) {
      CheckComplaint(named.status());
      continue;
    }
    CheckTrace(*named);
    CheckPlan(*named);
  }
}

}  // namespace sluice::fuzz
