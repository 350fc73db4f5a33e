// `sluicectl bandwidth measure`: measures copies between each GPU and host
// memory, and makes the links section of the daemon's configuration from it.
// Thread safety: one call at a time.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sluice::ctl {

struct MeasureOptions {
  std::string socket, admin_socket;
  double seconds = 1;  // averaging time of each number
  bool beside_jobs = false;
  bool json = false;
  std::string out;    // file for the configuration; empty: stdout
  bool keep = false;  // store the speeds in the daemon
};

// Returns the text to print. FailedPrecondition: jobs have ranks on this node,
// or the daemon cannot keep the speeds. Other errors are those of admin.h,
// sessions and leases.
absl::StatusOr<std::string> MeasureBandwidth(const MeasureOptions& options);

// Deletes the stored speeds. Returns the text to print.
absl::StatusOr<std::string> ForgetMeasured(const std::string& admin_socket,
                                           bool as_json);

}  // namespace sluice::ctl
