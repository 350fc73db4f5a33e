// One page of sluiced's, over its unix socket.
//
// Thread safety: safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sluice::ctl {

// The body of a 200. Errors say which socket, and what it answered.
absl::StatusOr<std::string> HttpGet(const std::string& socket,
                                    const std::string& path);

}  // namespace sluice::ctl
