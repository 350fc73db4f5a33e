// What is asked of a pool and changes nothing.
#include <algorithm>

#include "daemon/core/pool/pool.h"
#include "proto/base/status.h"

namespace sluice::daemon {

Bytes Pool::ChargedTo(PrincipalId principal) const {
  const auto charged = charged_.find(principal);
  return charged != charged_.end() ? charged->second.all : Bytes(0);
}

size_t Pool::OwnedBy(PrincipalId principal) const {
  const auto owned = owned_.find(principal);
  return owned != owned_.end() ? owned->second : 0;
}

size_t Pool::KeptOf(PrincipalId principal) const {
  const auto kept = kept_of_.find(principal);
  return kept != kept_of_.end() ? kept->second.size() : 0;
}

std::vector<ExtentId> Pool::OldestKept(size_t count,
                                       const std::set<ExtentId>& spared,
                                       std::optional<PrincipalId> of) const {
  std::vector<ExtentId> found;
  if (of && !kept_of_.contains(*of)) return found;
  for (const auto& [order, id] : of ? kept_of_.at(*of) : kept_by_age_) {
    if (found.size() >= count) break;
    if (!spared.contains(id)) found.push_back(id);
  }
  return found;
}

std::vector<ExtentId> Pool::KeptSince(absl::Time then, size_t count) const {
  std::vector<ExtentId> found;
  for (const auto& [order, id] : kept_by_age_) {
    if (found.size() >= count || extents_.at(id).kept_since > then) break;
    found.push_back(id);
  }
  return found;
}

absl::Time Pool::OldestSince() const {
  return kept_by_age_.empty()
             ? absl::InfiniteFuture()
             : extents_.at(kept_by_age_.begin()->second).kept_since;
}

void Pool::CheckInvariants() const {
  Bytes leased, quarantined, lingering, kept;
  size_t idle = 0, kept_count = 0, holds = 0;
  std::map<PrincipalId, size_t> owned;
  std::map<PrincipalId, Charged> charged;
  for (const auto& [id, extent] : extents_) {
    SLUICE_CHECK(extent.size > Bytes(0) && extent.size <= extent_);
    ++owned[extent.principal];
    if (extent.state != State::kKept) {
      charged[extent.principal].all += extent.size;
    }
    if (extent.state == State::kLingering) {
      charged[extent.principal].lingering += extent.size;
    }
    switch (extent.state) {
      case State::kMaking:
        SLUICE_CHECK(extent.holders.empty());
        [[fallthrough]];
      case State::kLeased:
        leased += extent.size;
        break;
      case State::kQuarantined:
        // Someone who may still map it must be known, or it never comes back.
        SLUICE_CHECK(std::count(extent.holders.begin(), extent.holders.end(),
                                extent.quarantined_for) == 1);
        quarantined += extent.size;
        break;
      case State::kLingering:
        lingering += extent.size;
        ++idle;
        break;
      case State::kKept:
        SLUICE_CHECK(extent.holders.empty());
        SLUICE_CHECK(kept_by_age_.at(extent.idle_order) == id);
        SLUICE_CHECK(kept_of_.at(extent.principal).at(extent.idle_order) == id);
        kept += extent.size;
        ++kept_count;
        ++idle;
        break;
    }
    for (SessionId by : extent.holders) {
      SLUICE_CHECK(held_.at(by).contains(id));
      ++holds;
    }
  }
  for (const auto& [by, ids] : held_) holds -= ids.size();
  size_t listed = 0;
  Bytes listed_lingering;
  for (const auto& [key, of_size] : idle_by_size_) {
    listed += of_size.by_age.size();
    listed_lingering += of_size.lingering;
  }
  SLUICE_CHECK(holds == 0);
  SLUICE_CHECK(owned == owned_ && charged == charged_);
  SLUICE_CHECK(idle == listed && kept_count == kept_by_age_.size());
  for (const auto& [principal, ids] : kept_of_) {
    SLUICE_CHECK(!ids.empty());
    kept_count -= ids.size();
  }
  SLUICE_CHECK(kept_count == 0);
  SLUICE_CHECK(lingering == lingering_ && listed_lingering == lingering_);
  SLUICE_CHECK(leased == leased_ && quarantined == quarantined_ &&
               kept == kept_);
  SLUICE_CHECK(unmade() >= Bytes(0));
  SLUICE_CHECK(outside() >= Bytes(0));
  SLUICE_CHECK(leased_ + lingering_ + quarantined_ + outside() + free() ==
               total_);
}

}  // namespace sluice::daemon
