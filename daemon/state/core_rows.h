// A core's state as the bytes of a state file: everything, or the changes.
//
// Both are lists of rows to put or erase, by key; later ones win. So a
// checkpoint and the records after it, applied in order, give the core's latest
// rows.
//
// Not included: what administrators set (policy_file.h keeps it on a disk),
// planning rounds that are asked or solved (a round for running jobs alone is
// due again at once; the clients of any other round ask again), and sessions
// that were never a rank's (their sockets are not kept either).
//
// Errors: InvalidArgument, one line: the bytes were not written by a daemon.
//
// Thread safety: one owner.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/core.h"
#include "daemon/core/state.h"
#include "daemon/state/objects.h"
#include "daemon/state/state_file.h"

namespace sluice::daemon {

class CoreRows {
 public:
  // Returns this core's changes since the last call; empty if there are none.
  std::string Changes(Core& core);
  // Returns all rows; the next Changes is relative to them.
  std::string Everything(Core& core);

 private:
  // The objects and the loose row that a reader of the bytes has so far.
  Objects objects_;
  std::string loose_;
};

// Returns the saved state of a core. What is not in its rows is taken from
// `fresh`, the state of a core of the same node without sessions.
absl::StatusOr<CoreState> ReadCore(const StateFile::Contents& contents,
                                   CoreState fresh);

}  // namespace sluice::daemon
