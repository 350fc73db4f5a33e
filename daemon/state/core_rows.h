// What a core knows, as the bytes of a state file: everything, or what changed.
//
// Both are lists of rows to put or to erase, by key; later ones win. So a
// checkpoint and the records after it, applied in order, are the core's rows as
// they last were.
//
// A checkpoint can also be drafted in parts, some beside each event's changes,
// so that no event takes long: each part is some rows as they are then, after
// what changed since the last part. That is a fuzzy checkpoint: none of its
// parts is everything at one time, and all together are everything as of the
// last one.
//
// Not in them: what administrators set (policy_file.h keeps it on a disk),
// rounds of planning that are asked or solved (a round for running jobs alone
// is due again at once; the clients of any other round ask again), sessions
// that never were a rank's (their sockets are not kept either), and the
// profiles and plans of jobs for which there is no room (planning_share.h).
//
// Errors: InvalidArgument, one line: what was read is not what was written.
// Thread safety: one owner.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/core.h"
#include "daemon/core/state.h"
#include "daemon/state/objects.h"
#include "daemon/state/planning_share.h"
#include "daemon/state/state_file.h"
#include "proto/base/units.h"

namespace sluice::daemon {

class CoreRows {
 public:
  // The most bytes of a checkpoint for all jobs' profiles and plans.
  static constexpr Bytes kMostPlanning = MiB(4);

  explicit CoreRows(Bytes most_planning = kMostPlanning)
      : written_{.objects = {},
                 .planning = PlanningShare(most_planning.size()),
                 .loose = {}} {}

  // What changed since the last call, of this core; empty if nothing.
  std::string Changes(Core& core);
  // All rows; the next Changes starts from here. Drops a draft.
  std::string Everything(Core& core);
  // Jobs with profiles and plans that are not saved, since the last call.
  std::vector<LeftOut> TakeLeftOut() { return written_.planning.TakeNews(); }

  // --- a checkpoint in parts -----------------------------------------------
  // Begins a draft, or begins it again.
  void BeginDraft(Core& core);
  bool drafting() const { return draft_.has_value(); }
  struct Part {
    std::string bytes;
    bool is_last = false;
  };
  // The next part, of at most `most` rows besides what changed. After the last
  // part, Changes is relative to the drafted checkpoint. REQUIRES: drafting(),
  // and nothing changed since Changes was called.
  Part NextPart(Core& core, size_t most);

 private:
  // What a reader of the bytes knows by then.
  struct Written {
    Objects objects;
    PlanningShare planning;
    std::string loose;
  };
  struct Draft {
    Written written;
    std::string bytes;  // of no part yet
  };

  Written written_;
  std::optional<Draft> draft_;
};

// What a core saved. What is not in its rows is taken from `fresh`, the state
// of a core of the same node that no client has reached.
absl::StatusOr<CoreState> ReadCore(const StateFile::Contents& contents,
                                   CoreState fresh);

}  // namespace sluice::daemon
