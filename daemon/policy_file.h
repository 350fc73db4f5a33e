// What administrators decided, on disk: one JSON file that people can read.
//
// How it works. The file is replaced as a whole: written beside, synced,
// renamed, and the folder synced, so that it is the old or the new one whenever
// the machine stops. What is read is checked strictly; a file that is not what
// this daemon would write ends its start, because limits that bind less than an
// administrator set are worse than no daemon.
//
// Times are kept by the wall clock, since monotonic ones end with the machine.
//
// Thread safety: pure; Write by one thread at a time.
#pragma once

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
  // do: it is not whole, not understood, or others may write to it or its
  // folder.
  absl::StatusOr<Policy> Read(const Clocks& now) const;
  // Makes the folder if need be, for this user alone to write to. DataLoss: it
  // is written, and may not survive a power cut. Any other error: it is as it
  // was.
  absl::Status Write(const Policy& policy, const Clocks& now) const;

 private:
  std::string path() const { return folder_ + "/policy"; }

  const std::string folder_;
};

}  // namespace sluice::daemon
