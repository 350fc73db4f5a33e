// Encodes a core's state, or its changes, as a list of rows to put or erase, by
// key; a later row replaces an earlier one. So a checkpoint and the records
// after it, applied in order, give the core's latest rows.
//
// Not included: what administrators set (policy_file.h); open planning rounds
// (the next daemon starts a round of running jobs alone at once, and the
// clients of any other round ask again); and sessions that were never a rank's.
//
// Thread safety: none; one owner.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/core.h"
#include "daemon/core/state.h"
#include "daemon/state/fields.h"
#include "daemon/state/state_file.h"

namespace sluice::daemon {

// A record is a list of operations, each with a key and a row's bytes.
// kEraseBelow erases all rows with keys that begin with its key.
enum class RowOp : uint8_t { kPut = 1, kErase = 2, kEraseBelow = 3 };

// The first letter of a key is a RowKind (daemon/core/state.h) or one of these.
// kLooseRow: the state outside of tables. kObjectRow: a numbered profile or
// plan.
inline constexpr char kLooseRow = 'c', kObjectRow = 'o';

class CoreRows {
 public:
  // Returns this core's changes since the last call; empty if there are none.
  std::string Changes(Core& core);
  // Returns all rows; the next Changes is relative to them.
  std::string Everything(Core& core);

 private:
  Objects objects_;    // the profiles and plans that were written
  std::string loose_;  // the loose row that was written last
};

// Returns the saved state of a core. What has no rows is taken from `fresh`,
// the state of a core of the same node without sessions. InvalidArgument, in
// one line: the bytes were not written by a daemon. FailedPrecondition: jobs
// use a pool that `fresh` does not have.
absl::StatusOr<CoreState> ReadCore(const StateFile::Contents& contents,
                                   CoreState fresh);

}  // namespace sluice::daemon
