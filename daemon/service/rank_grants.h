// The grants of attached ranks. Each rank has a slot of the limits page, its
// own use page, and a place in its user's quota of ranks.
//
// Thread safety: loop's thread only, except for pages().
#pragma once

#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/effects.h"
#include "daemon/core/node/types.h"
#include "daemon/core/session.h"
#include "daemon/quota/quotas.h"
#include "daemon/service/grant_pages.h"
#include "daemon/service/takeover/handover.h"
#include "proto/base/clock.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class RankGrants {
 public:
  using UsePage = std::shared_ptr<const UniqueFd>;
  struct Parts {
    const NodeConfig* node;  // these must outlive this object
    Quotas* quotas;
    Handover* handover;
    const Clock* clock;
  };

  // Continues with the limits page of an earlier daemon if it can be used.
  // Otherwise makes a new one, and ranks that have the old page mapped copy
  // without limits.
  static absl::StatusOr<std::unique_ptr<RankGrants>> Start(
      Parts parts, std::vector<LinkSpeed> links);

  // Gives the slot to a rank of that principal. Returns null if no use page
  // could be made: the error is logged, and UsePageOf returns it.
  UsePage Attach(const AttachGrants& effect, const Principal& who);
  // Attaches a rank of an earlier daemon with its use page. After an error the
  // rank cannot continue.
  absl::Status Resume(const Session& rank, double weight, bool holds);
  void Detach(int slot);
  // Drops the session's use page, because it will not be sent any more.
  void DropUsePage(SessionId id);
  // ResourceExhausted: no page could be made.
  absl::StatusOr<UsePage> UsePageOf(SessionId id) const;

  // The grant pages. Promises and use exist only for attached slots.
  GrantPages& pages() { return *pages_; }

 private:
  RankGrants(Parts parts, std::unique_ptr<GrantPages> pages)
      : parts_(parts), pages_(std::move(pages)) {}
  int LinkIndexOf(DeviceIndex gpu) const;
  void Take(int slot, const Principal& who);

  const Parts parts_;
  const std::unique_ptr<GrantPages> pages_;
  std::map<int, Principal> slots_;  // the user of each attached slot
  std::map<SessionId, UsePage> use_pages_;
  absl::Status no_page_;  // why the last use page could not be made
};

}  // namespace sluice::daemon
