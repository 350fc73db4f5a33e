// Administrators' settings on disk: one JSON file that people can read.
//
// The new file is written beside the old one, synced and renamed, so after a
// crash of the machine one of the two is there. A file that this daemon does
// not fully understand ends the daemon's start, because looser limits than an
// administrator set are worse than no daemon; if jobs hold what an earlier
// daemon left, the daemon is frozen instead (daemon/frozen). So a new section
// needs no version number: a daemon that does not know it refuses the file.
//
// Times are wall-clock times: a monotonic clock restarts with the machine.
//
// Thread safety: any thread, but only one at a time may call Write.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/policy.h"

namespace sluice::daemon {

struct Clocks {
  absl::Time monotonic, wall;
};

std::string EncodePolicy(const Policy& policy, const Clocks& now);
absl::StatusOr<Policy> DecodePolicy(const std::string& text, const Clocks& now);

// The file `folder`/policy. If `folder` is empty, Read returns an empty policy.
class PolicyFile {
 public:
  explicit PolicyFile(std::string folder) : folder_(std::move(folder)) {}

  // Returns an empty policy if there is no file. InvalidArgument, in one line
  // with what to do: the file is incomplete or not understood, or others than
  // root and `daemon` (the daemon's user) may write to it. PermissionDenied:
  // this process may not read it.
  absl::StatusOr<Policy> Read(const Clocks& now, uid_t daemon) const;
  // Returns the owner of the folder, or this user if there is no folder.
  uid_t owner() const;
  // Makes the folder, open only to this user, if there is none. DataLoss:
  // the policy is written, but may not survive a power cut. Other errors: the
  // file is unchanged.
  absl::Status Write(const Policy& policy, const Clocks& now) const;
  std::string path() const { return folder_ + "/policy"; }

 private:
  const std::string folder_;
};

}  // namespace sluice::daemon
