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

// What the extents add up to, one by one.
struct Pool::Counted {
  Bytes leased, making, quarantined, lingering, kept;
  size_t idle = 0, kept_count = 0, holds = 0;
  std::map<PrincipalId, size_t> owned;
  std::map<PrincipalId, Charged> charged;
};

void Pool::CheckInvariants() const {
  Counted counted;
  for (const auto& [id, extent] : extents_) CheckExtent(id, extent, counted);
  SLUICE_CHECK(counted.owned == owned_ && counted.charged == charged_);
  CheckLists(counted);
  SLUICE_CHECK(counted.leased == leased_ && counted.making == making_ &&
               counted.lingering == lingering_ &&
               counted.quarantined == quarantined_ && counted.kept == kept_);
  SLUICE_CHECK(unmade() >= Bytes(0));
  SLUICE_CHECK(outside() >= Bytes(0));
  SLUICE_CHECK(leased_ + lingering_ + quarantined_ + outside() + free() ==
               total_);
}

// By itself, and in the lists that name it.
void Pool::CheckExtent(ExtentId id, const Extent& extent,
                       Counted& counted) const {
  SLUICE_CHECK(extent.size > Bytes(0) && extent.size <= extent_);
  ++counted.owned[extent.principal];
  if (extent.state != State::kKept) {
    counted.charged[extent.principal].all += extent.size;
  }
  if (extent.state == State::kLingering) {
    counted.charged[extent.principal].lingering += extent.size;
  }
  switch (extent.state) {
    case State::kMaking:
      SLUICE_CHECK(extent.holders.empty());
      counted.making += extent.size;
      [[fallthrough]];
    case State::kLeased:
      counted.leased += extent.size;
      break;
    case State::kQuarantined:
      // A holder that may still map it must be known, or it never comes back.
      SLUICE_CHECK(std::count(extent.holders.begin(), extent.holders.end(),
                              extent.quarantined_for) == 1);
      counted.quarantined += extent.size;
      break;
    case State::kLingering:
      counted.lingering += extent.size;
      ++counted.idle;
      break;
    case State::kKept:
      SLUICE_CHECK(extent.holders.empty());
      SLUICE_CHECK(kept_by_age_.at(extent.idle_order) == id);
      SLUICE_CHECK(kept_of_.at(extent.principal).at(extent.idle_order) == id);
      counted.kept += extent.size;
      ++counted.kept_count;
      ++counted.idle;
      break;
  }
  for (SessionId by : extent.holders) {
    SLUICE_CHECK(held_.at(by).contains(id));
    ++counted.holds;
  }
}

// The lists name nothing else.
void Pool::CheckLists(const Counted& counted) const {
  size_t holds = 0, listed = 0, kept = 0;
  Bytes lingering;
  for (const auto& [by, ids] : held_) holds += ids.size();
  for (const auto& [key, of_size] : idle_by_size_) {
    listed += of_size.by_age.size();
    lingering += of_size.lingering;
  }
  for (const auto& [principal, ids] : kept_of_) {
    SLUICE_CHECK(!ids.empty());
    kept += ids.size();
  }
  SLUICE_CHECK(holds == counted.holds && listed == counted.idle);
  SLUICE_CHECK(kept == counted.kept_count &&
               kept_by_age_.size() == counted.kept_count);
  SLUICE_CHECK(lingering == lingering_);
}

}  // namespace sluice::daemon
