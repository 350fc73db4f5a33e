// Where the daemon's HTTP server listens. Internal to daemon/metrics.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sluice::daemon {

struct HttpAddress {
  std::string host;
  int port = 0;  // 0: any
};

// InvalidArgument: not "ADDRESS:PORT".
absl::StatusOr<HttpAddress> ParseHttpAddress(const std::string& listen);

}  // namespace sluice::daemon
