// What each attached rank has for its grants: a slot of the page of limits, a
// use page of its own, and a place in its user's quota of ranks.
//
// Thread safety: loop's thread only, as pages() says for itself.
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
    const NodeConfig* node;  // these outlive it
    Quotas* quotas;
    Handover* handover;
    const Clock* clock;
  };

  // Goes on with the page of limits that an earlier daemon left, if it can be
  // used; else the copies of ranks that have it mapped are ungated.
  static absl::StatusOr<std::unique_ptr<RankGrants>> Start(
      Parts parts, std::vector<LinkSpeed> links);

  // Gives the slot to a rank of that principal. Null: no use page could be
  // made, which the log says, and so does UsePageOf.
  UsePage Attach(const AttachGrants& effect, const Principal& who);
  // Attaches a rank of an earlier daemon with its use page. An error: the rank
  // cannot go on.
  absl::Status Resume(const Session& rank, double weight, bool holds);
  void Detach(int slot);
  // The session's use page is not sent any more.
  void DropUsePage(SessionId id);
  // ResourceExhausted: none could be made.
  absl::StatusOr<UsePage> UsePageOf(SessionId id) const;

  // What is promised and used, for attached slots only.
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
