// The operations of administrators, metrics and status pages on a daemon.
//
// How it works. The callers have threads of their own. Each call is one task or
// two on the loop, where policy lives. A change is written to the file before
// it is in force (write-ahead); the file is written on the administrator's
// thread, so that the loop never waits for a disk.
//
// Errors. Unavailable: the loop has ended, or does not answer within a second.
// After an error of a setter nothing has changed, except after DataLoss: the
// change is in force, and a power cut may undo it. If a change could neither be
// put in force nor the file be restored, the error says so.
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
    Loop* loop = nullptr;  // these three outlive it
    Core* core = nullptr;  // the loop's
    Snapshots* snapshots = nullptr;
    CgroupCut cgroups;  // which cgroups count as users of their own
    // Writes the policy to a file; one call at a time. DataLoss: it was
    // written, but a power cut may undo that. Null: what is set ends with the
    // daemon.
    std::function<absl::Status(const Policy&)> write_policy;
    // On the loop's thread: executes effects, and writes what was logged; has
    // what ranks have copied counted, before their sessions are ended.
    std::function<void(Effects)> execute;
    std::function<void()> see_copies;
  };
  explicit Administration(Options options) : options_(std::move(options)) {}

  // The whole snapshot.
  absl::StatusOr<Snapshot> Read();
  // What it would save for the next daemon, as rows (CoreRows).
  absl::StatusOr<std::string> ReadRows();
  // Whether the loop answers.
  absl::Status Answers();

  // What holds after a change.
  struct Applied {
    Limits limits;            // of a BudgetChange's target
    int ranks = 0;            // that are attached
    bool links_wait = false;  // measured links hold once no rank is attached
  };
  // As Core::Apply.
  absl::StatusOr<Applied> Apply(const PolicyChange& change);
  // NotFound: no session was ended and no process killed.
  absl::StatusOr<Core::Evicted> Evict(const std::string& job,
                                      std::optional<uint32_t> uid, bool kill,
                                      const std::string& reason);

 private:
  absl::Status OnLoop(std::function<void()> task);
  // Applies it on the loop. Unavailable: it did not, and will not.
  absl::StatusOr<Applied> ApplyOnLoop(const PolicyChange& change);
  // InvalidArgument if a cgroup that it names counts as no user of its own.
  absl::Status CheckCgroup(const PolicyChange& change) const;
  void Execute(Effects effects) { options_.execute(std::move(effects)); }
  absl::Time now() const { return options_.loop->now(); }

  const Options options_;
  Core& core_ = *options_.core;
  Mutex policy_mutex_;  // one administrator at a time changes and keeps it
};

}  // namespace sluice::daemon
