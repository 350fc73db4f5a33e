// Range checks of a request's fields. They are the daemon's trust boundary, and
// a client runs them before it sends.
//
// Thread safety: safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/session.pb.h"

namespace sluice::wire {

// InvalidArgument names the first field that is out of range, and its range.
// Unimplemented: the body is none that this version knows.
absl::Status CheckFields(const Request& request);

// InvalidArgument: a job cannot have this name; the message says why.
absl::Status CheckJob(const std::string& name);

}  // namespace sluice::wire
