// Plans as memfds. All ranks of a job get the same memfd, at different times,
// so it is kept for a moment after it was made.
//
// Thread safety: loop's thread only.
#pragma once

#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/core/node/types.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class PlanFiles {
 public:
  static constexpr absl::Duration kKept = absl::Seconds(1);

  // `core` must outlive this object
  explicit PlanFiles(const Core* core) : core_(core) {}

  // Returns the plan's memfd. NotFound: policy no longer keeps that plan.
  absl::StatusOr<std::shared_ptr<const UniqueFd>> Of(PlanId plan,
                                                     absl::Time now);
  // Returns when to call Expire; InfiniteFuture if not needed.
  absl::Time deadline() const;
  void Expire(absl::Time now);

 private:
  struct File {
    std::shared_ptr<const UniqueFd> fd;
    absl::Time drop_at;
  };
  const Core* core_;
  std::map<PlanId, File> files_;
};

}  // namespace sluice::daemon
