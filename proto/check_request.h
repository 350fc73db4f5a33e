// The range checks of a request's fields: the daemon's trust boundary, and what
// a client asks itself before it sends.
//
// Thread safety: safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/session.pb.h"

namespace sluice::wire {

// InvalidArgument: the first field that is out of range, and its range.
// Unimplemented: no body that this version knows.
absl::Status CheckFields(const Request& request);

// InvalidArgument: no job can have this name, and why.
absl::Status CheckJob(const std::string& name);

}  // namespace sluice::wire
