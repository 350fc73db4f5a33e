// One reader function per format (internal to planner/trace). read_trace.h and
// README.md specify results and errors. `alignment`: sizes are rounded up to
// it. `in` must be at the first byte of the input.
#pragma once

#include <istream>

#include "absl/status/statusor.h"
#include "planner/trace/read_trace.h"

namespace sluice::planner {

absl::StatusOr<NamedTrace> ReadCsvTrace(std::istream& in,
                                        const TraceOptions& options,
                                        Bytes alignment);
absl::StatusOr<NamedTrace> ReadRequestLog(std::istream& in,
                                          const TraceOptions& options,
                                          Bytes alignment);
absl::StatusOr<NamedTrace> ReadPyTorchTrace(std::istream& in,
                                            const TraceOptions& options,
                                            Bytes alignment);
absl::StatusOr<NamedTrace> ReadProfile(std::istream& in,
                                       const TraceOptions& options,
                                       Bytes alignment);

}  // namespace sluice::planner
