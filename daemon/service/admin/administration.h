// The operations on a daemon for administrators, metrics and status pages.
//
// Each call is one or two tasks on the loop's thread, which owns policy. The
// caller's thread writes a change to the policy file before the change takes
// effect, so that the loop never waits for a disk.
//
// Unavailable: the loop has ended, or does not answer within a second. After an
// error of a setter nothing has changed, except after DataLoss (the change is
// in force, but a power cut may undo it), or if the error says that the file
// could not be restored.
//
// Thread safety: safe.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/core.h"
#include "daemon/core/policy.h"
#include "daemon/quota/principal.h"
#include "daemon/service/admin/snapshots.h"
#include "daemon/service/threads/loop.h"
#include "proto/base/mutex.h"

namespace sluice::daemon {

class Administration {
 public:
  struct Options {
    Loop* loop = nullptr;  // these three must outlive this object
    Core* core = nullptr;  // used on the loop's thread only
    Snapshots* snapshots = nullptr;
    CgroupCut cgroups;  // the cgroups that count as separate users
    // One call at a time. DataLoss: the policy was written, but a power cut may
    // undo that. Null: what administrators set is lost when the daemon ends.
    std::function<absl::Status(const Policy&)> write_policy;
    // Both run on the loop's thread.
    std::function<void(Effects)> execute;
    std::function<void()> see_copies;  // called before sessions are ended
  };
  explicit Administration(Options options) : options_(std::move(options)) {}

  absl::StatusOr<Snapshot> Read();
  // Returns the state that would be saved for the next daemon (CoreRows).
  absl::StatusOr<std::string> ReadRows();
  absl::Status Answers() {
    return OnLoop([] {});
  }

  struct Applied {
    Limits limits;            // of a BudgetChange's target
    int ranks = 0;            // number of attached ranks
    bool links_wait = false;  // measured links apply once no rank is attached
  };
  // Applies a change; errors as Core::Apply.
  absl::StatusOr<Applied> Apply(const PolicyChange& change);
  // NotFound: no session of the job was ended and no process killed.
  absl::StatusOr<Core::Evicted> Evict(const std::string& job,
                                      std::optional<uint32_t> uid, bool kill,
                                      const std::string& reason);

 private:
  absl::Status OnLoop(std::function<void()> task);
  // Unavailable: the change was not applied, and will not be.
  absl::StatusOr<Applied> ApplyOnLoop(const PolicyChange& change);
  // InvalidArgument: the change names a cgroup that is not a principal.
  absl::Status CheckCgroup(const PolicyChange& change) const;
  absl::Time now() const { return options_.loop->now(); }

  const Options options_;
  Core& core_ = *options_.core;
  Mutex policy_mutex_;
};

}  // namespace sluice::daemon
