// sluicectl support-bundle: one archive for a support request.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/ctl/doctor/read_facts.h"

namespace sluice::ctl {

struct BundleOptions {
  std::string out;  // a file, or - ; empty: a name with host and time, here
  int64_t journal_lines = 2000;
  bool json = false;
};

// Writes it, for this user alone to read, and returns what to print: what is in
// it, what is not, and why. Ctrl-C leaves nothing behind.
absl::StatusOr<std::string> MakeSupportBundle(const SocketPaths& sockets,
                                              const BundleOptions& options);

}  // namespace sluice::ctl
