// Administrators' settings on disk: one JSON file that people can read.
//
// How it works. The file is replaced as a whole: written beside, synced,
// renamed, and the folder synced, so that it is the old or the new one whenever
// the machine stops. What is read is checked strictly; a file that is not what
// this daemon would write ends its start, because limits that bind less than an
// administrator set are worse than no daemon. If jobs hold what an earlier
// daemon left, the daemon freezes instead (daemon/frozen). So an added section
// needs no version: a daemon that does not know it does not misread it.
//
// Times are kept by the wall clock, since monotonic ones end with the machine.
//
// Thread safety: pure; Write by one thread at a time.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/policy.h"

namespace sluice::daemon {

// Both clocks at one moment.
struct Clocks {
  absl::Time monotonic, wall;
};

std::string EncodePolicy(const Policy& policy, const Clocks& now);
// InvalidArgument in one line: which entry is wrong, and how.
absl::StatusOr<Policy> DecodePolicy(const std::string& text, const Clocks& now);

// `folder`/policy; no folder: nothing is read.
class PolicyFile {
 public:
  explicit PolicyFile(std::string folder) : folder_(std::move(folder)) {}

  // Nothing where there is no file. InvalidArgument, in one line with what to
  // do: it is not whole, not understood, or others than `daemon`, the daemon's
  // user, may write to it. PermissionDenied: this process may not read it.
  absl::StatusOr<Policy> Read(const Clocks& now, uid_t daemon) const;
  absl::StatusOr<Policy> Read(const Clocks& now) const;  // this is the daemon
  // The owner of its folder; without one this process's user.
  uid_t owner() const;
  // Makes the folder if need be, for this user alone to write to. DataLoss: it
  // is written, and may not survive a power cut. Any other error: it is as it
  // was.
  absl::Status Write(const Policy& policy, const Clocks& now) const;
  std::string path() const { return folder_ + "/policy"; }

 private:
  const std::string folder_;
};

}  // namespace sluice::daemon
