// `sluicectl bandwidth measure`: how fast copies between each GPU and host
// memory are, alone and together, and what of it the daemon's configuration
// should know.
//
// Thread safety: one call at a time; SIGINT, SIGTERM and SIGHUP are its while
// it runs.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sluice::ctl {

struct MeasureOptions {
  std::string socket, admin_socket;
  double seconds = 1;  // that each number is averaged over
  bool beside_jobs = false;
  bool json = false;
  std::string out;    // where the configuration goes; empty: below the table
  bool keep = false;  // the daemon goes by it from now on
};

// What is to be printed. FailedPrecondition: jobs have ranks here, or what is
// to be kept cannot be. Cancelled: Ctrl-C, which then ends the process.
// PermissionDenied, NotFound and others: those of admin.h, of a session and of
// leases.
absl::StatusOr<std::string> MeasureBandwidth(const MeasureOptions& options);

// The daemon goes by the configuration alone again. What is to be printed.
absl::StatusOr<std::string> ForgetMeasured(const std::string& admin_socket,
                                           bool as_json);

}  // namespace sluice::ctl
