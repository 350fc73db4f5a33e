// Checks the ranges of a request's fields. The daemon trusts only requests that
// pass; a client checks before it sends.
//
// Thread safety: safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/session.pb.h"

namespace sluice::wire {

// InvalidArgument names the first field that is out of range, and the range.
// Unimplemented: this version does not know the request's kind.
absl::Status CheckFields(const Request& request);

// InvalidArgument: a job cannot have this name; the message states why.
absl::Status CheckJob(const std::string& name);

}  // namespace sluice::wire
