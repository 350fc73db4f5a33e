// What a core knows, as the bytes of a state file: everything, or what changed.
//
// Both are lists of rows to put or to erase, by key; later ones win. So a
// checkpoint and the records after it, applied in order, are the core's rows as
// they last were.
//
// A checkpoint can also be drafted in parts, some beside each event's changes,
// so that no event takes long: each part is some rows as they are then, and
// before them what changed since the last part. It is what is called a fuzzy
// checkpoint: none of its parts is everything at one time, and all together are
// everything as of the last one.
//
// Not in them: what administrators set (policy_file.h keeps it on a disk),
// rounds of planning that are asked or solved (a round for running jobs alone
// is due again at once; whoever asked for any other round asks again),
// sessions that never were a rank's (their sockets are not kept either), and
// the profiles and plans of jobs for which there is no room (planning_share.h).
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
  // What profiles and plans of all jobs may take of a checkpoint.
  static constexpr Bytes kMostPlanning = MiB(4);

  explicit CoreRows(Bytes most_planning = kMostPlanning)
      : written_{.objects = {},
                 .planning = PlanningShare(most_planning.size()),
                 .loose = {}} {}

  // What changed since it was asked last, of this core; empty: nothing.
  std::string Changes(Core& core);
  // All there is. What it is asked for next is what changed since. A draft is
  // dropped.
  std::string Everything(Core& core);
  // Jobs whose profiles and plans are not saved, since it was asked last.
  std::vector<LeftOut> TakeLeftOut() { return written_.planning.TakeNews(); }

  // --- a checkpoint in parts -----------------------------------------------
  // Begins one anew.
  void BeginDraft(Core& core);
  bool drafting() const { return draft_.has_value(); }
  struct Part {
    std::string bytes;
    bool is_last = false;
  };
  // The next part, of at most `most` rows besides what changed. After the last
  // one, changes are of the drafted checkpoint.
  // REQUIRES: drafting(), and nothing changed since Changes was asked.
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

// What a core saved, but for what is not in its rows: that is taken from
// `fresh`, the state of a core of the same node that nobody has reached.
absl::StatusOr<CoreState> ReadCore(const StateFile::Contents& contents,
                                   CoreState fresh);

}  // namespace sluice::daemon
