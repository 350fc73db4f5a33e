// `sluicectl bandwidth measure`: measures copies between each GPU and host
// memory, alone and together, and writes the part of the daemon's configuration
// that follows.
//
// Thread safety: one call at a time; it handles SIGINT, SIGTERM and SIGHUP
// while it runs.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sluice::ctl {

struct MeasureOptions {
  std::string socket, admin_socket;
  double seconds = 1;  // over which each number is averaged
  bool beside_jobs = false;
  bool json = false;
  std::string out;    // the configuration's file; empty: stdout
  bool keep = false;  // the daemon uses the speeds from now on
};

// Returns the text to print. FailedPrecondition: jobs have ranks here, or the
// daemon cannot keep the speeds. Cancelled: Ctrl-C, after which the process
// ends. PermissionDenied, NotFound and others are those of admin.h, sessions
// and leases.
absl::StatusOr<std::string> MeasureBandwidth(const MeasureOptions& options);

// Makes the daemon use only its configuration again. Returns the text to print.
absl::StatusOr<std::string> ForgetMeasured(const std::string& admin_socket,
                                           bool as_json);

}  // namespace sluice::ctl
