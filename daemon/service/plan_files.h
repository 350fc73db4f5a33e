// Plans as memfds: one for all ranks of a job, which get it one after the
// other. It is kept for a moment after it was made.
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

  explicit PlanFiles(const Core* core) : core_(core) {}  // outlives it

  // NotFound: policy does not keep that plan any more.
  absl::StatusOr<std::shared_ptr<const UniqueFd>> Of(PlanId plan,
                                                     absl::Time now);
  // When to call Expire; InfiniteFuture: not needed.
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
