// What a core knows, as the bytes of a state file: everything, or what changed.
//
// Both are lists of rows to put or to erase, by key; later ones win. So a
// checkpoint and the records after it, applied in order, are the core's rows as
// they last were.
//
// Not in them: what administrators set (policy_file.h keeps it on a disk),
// rounds of planning that are asked or solved (a round for running jobs alone
// is due again at once; the clients of any other round ask again), and sessions
// that never were a rank's (their sockets are not kept either).
//
// Errors: InvalidArgument, one line: what was read is not what was written.
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
  // What changed since the last call, of this core; empty if nothing.
  std::string Changes(Core& core);
  // All rows; the next Changes starts from here.
  std::string Everything(Core& core);

 private:
  // What a reader of the bytes knows by then.
  Objects objects_;
  std::string loose_;
};

// What a core saved. What is not in its rows is taken from `fresh`, the state
// of a core of the same node that no client has reached.
absl::StatusOr<CoreState> ReadCore(const StateFile::Contents& contents,
                                   CoreState fresh);

}  // namespace sluice::daemon
