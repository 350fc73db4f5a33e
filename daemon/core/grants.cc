#include "daemon/core/grants.h"

#include <cmath>
#include <set>
#include <utility>

#include "daemon/bandwidth/topology.h"
#include "proto/base/find.h"
#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// The window of a rank on a link of unknown speed: large enough for a late
// refill, and far from overflow.
constexpr uint64_t kUngated = 2 * kGrantFar;

// The weight of a rank without memory, relative to its normal weight.
constexpr double kLastOfAll = 1e-6;

int FlowOf(int slot, int direction) { return 2 * slot + direction; }

}  // namespace

void LinkSharers::Count(const std::vector<size_t>& path, int user,
                        double weight, int more) {
  const auto number = static_cast<size_t>(user);
  for (const size_t i : path) {
    Link& link = links_[i];
    link.ranks_of.resize(std::max(link.ranks_of.size(), number + 1));
    link.ranks += more;
    link.ranks_of[number] += more;
    if (link.ranks_of[number] == (more > 0 ? 1 : 0)) {
      link.weight += more * weight;
    }
    if (link.ranks == 0) link.weight = 0;  // removes rounding errors
  }
}

double LinkSharers::PartOf(size_t link, int user, double weight) const {
  const Link& at = links_[link];
  const auto number = static_cast<size_t>(user);
  const int ranks = number < at.ranks_of.size() ? at.ranks_of[number] : 0;
  return ranks > 0 ? weight / at.weight / ranks : weight / (at.weight + weight);
}

GrantPolicy::GrantPolicy(std::vector<LinkSpeed> links)
    : links_(std::move(links)),
      holders_(links_.size()),
      wanting_{LinkSharers(links_.size()), LinkSharers(links_.size())},
      shares_(*bandwidth::Topology::Make(links_)) {
  paths_.reserve(links_.size());
  for (const LinkSpeed& link : links_) {
    paths_.push_back(LinkPath(links_, link.name));
  }
}

// Returns the least positive `of(i)` of a link `i` on the path; 0 if none is.
template <typename Of>
double GrantPolicy::Least(int link, Of of) const {
  double least = 0;
  if (link < 0) return least;
  for (const size_t i : paths_[link]) {
    const double speed = of(i);
    if (speed > 0 && (least <= 0 || speed < least)) least = speed;
  }
  return least;
}

double GrantPolicy::Rate(int link, int direction) const {
  return Least(link, [&](size_t i) { return SpeedOf(links_[i], direction); });
}

double GrantPolicy::EvenRate(const RankShare& rank, int direction,
                             const LinkSharers& sharers) const {
  return Least(rank.link, [&](size_t i) {
    return SpeedBothWays(links_[i], direction) *
           sharers.PartOf(i, rank.user, rank.sharer.weight);
  });
}

int GrantPolicy::UserOf(const Principal& who) const {
  std::set<int> taken;
  for (const auto& [slot, rank] : ranks_) {
    if (rank.sharer.who == who) return rank.user;
    taken.insert(rank.user);
  }
  int user = 0;
  while (taken.contains(user)) ++user;
  return user;
}

void GrantPolicy::Count(LinkSharers& sharers, const RankShare& rank,
                        bool more) {
  if (rank.link < 0) return;
  sharers.Count(paths_[rank.link], rank.user, rank.sharer.weight,
                more ? 1 : -1);
}

uint64_t GrantPolicy::Window(int link, int direction) const {
  const double rate = Rate(link, direction);
  if (rate <= 0) return kUngated;
  int flows = 0;  // on the busiest limited link of the path
  for (const size_t i : paths_[link]) {
    if (SpeedOf(links_[i], direction) <= 0) continue;
    const int of_rank = links_[i].both_bytes_per_second > 0 ? 2 : 1;
    flows = std::max(flows, holders_.ranks(i) * of_rank);
  }
  const absl::Duration window = flows <= 1 ? kWindowAlone : kWindow;
  return std::max(kMinWindow,
                  static_cast<uint64_t>(rate * absl::ToDoubleSeconds(window)));
}

GrantPolicy::Grant GrantPolicy::GrantOf(const RankShare& rank) const {
  Grant grant{rank.limit, {0, 0}};
  for (int d : {kH2d, kD2h}) {
    if (!Gated(rank, d)) continue;
    // The rate of a rank that copies little is its even share, which it would
    // get if it copied all the time.
    grant.rate[d] = static_cast<uint64_t>(
        std::max({EvenRate(rank, d, holders_), rank.demand[d], rank.rate[d]}));
  }
  return grant;
}

GrantPolicy::Grant GrantPolicy::Attach(int slot, int link,
                                       const GrantSharer& sharer) {
  SLUICE_CHECK(!ranks_.contains(slot));
  SLUICE_CHECK(link < static_cast<int>(links_.size()));
  settled_ = false;
  RankShare fresh{.link = link, .sharer = sharer, .user = UserOf(sharer.who)};
  RankShare& rank = ranks_.emplace(slot, std::move(fresh)).first->second;
  if (sharer.holds) Count(holders_, rank, true);
  for (int d : {kH2d, kD2h}) {
    // A rank with memory gets its first window at once, so that it starts
    // without waiting.
    const bool gift = sharer.holds || !Gated(rank, d);
    rank.limit[d] = gift ? Window(link, d) : 0;
    if (Gated(rank, d)) {
      shares_.Open(FlowOf(slot, d), link, d, /*weight=*/1, rank.user);
    }
  }
  return GrantOf(rank);
}

void GrantPolicy::Hold(int slot, bool holds) {
  RankShare& rank = ranks_.at(slot);
  if (std::exchange(rank.sharer.holds, holds) == holds) return;
  settled_ = false;
  Count(holders_, rank, holds);
  for (int d : {kH2d, kD2h}) {
    if (!Gated(rank, d)) continue;
    if (holds) rank.limit[d] = std::max(rank.limit[d], Window(rank.link, d));
    KeepPromise(slot, d);
  }
}

GrantPolicy::Grant GrantPolicy::Resume(int slot, int link,
                                       const GrantSharer& sharer,
                                       const Directions& limit,
                                       const Directions& used) {
  Attach(slot, link, sharer);
  RankShare& rank = ranks_.at(slot);
  for (int d : {kH2d, kD2h}) {
    rank.used[d] = std::min(used[d], limit[d] + kOneCopy);
    rank.limit[d] = std::max(limit[d], rank.used[d]);
  }
  return GrantOf(rank);
}

void GrantPolicy::KeepPromise(int slot, int direction) {
  const RankShare& rank = ranks_.at(slot);
  shares_.Promise(FlowOf(slot, direction),
                  rank.sharer.holds ? rank.demand[direction] : 0);
}

void GrantPolicy::Promise(int slot, const CopyRates& rates) {
  settled_ = false;
  RankShare& rank = ranks_.at(slot);
  for (int d : {kH2d, kD2h}) {
    if (Gated(rank, d) && std::exchange(rank.demand[d], rates[d]) != rates[d]) {
      KeepPromise(slot, d);
    }
  }
}

void GrantPolicy::Detach(int slot) {
  RankShare* const rank = FindOrNull(ranks_, slot);
  if (rank == nullptr) return;
  settled_ = false;
  for (int d : {kH2d, kD2h}) {
    if (!Gated(*rank, d)) continue;
    Want(*rank, d, false);
    shares_.Close(FlowOf(slot, d));
  }
  if (rank->sharer.holds) Count(holders_, *rank, false);
  ranks_.erase(slot);
}

void GrantPolicy::Believe(RankShare& rank, const Directions& said,
                          absl::Duration elapsed) {
  for (int d : {kH2d, kD2h}) {
    uint64_t most = rank.limit[d] + kOneCopy;
    // Without a known speed no rank waits for grants, so a false report takes
    // nothing from other ranks, and is not checked against the time.
    if (const double rate = Rate(rank.link, d); rate > 0) {
      const auto carried =
          static_cast<uint64_t>(rate * absl::ToDoubleSeconds(elapsed));
      most = std::min(most, rank.used[d] + kOneCopy + carried);
    }
    rank.used[d] =
        std::clamp(said[d], rank.used[d], std::max(rank.used[d], most));
  }
}

void GrantPolicy::TellNeed(int slot, int direction, const Need& need,
                           absl::Duration elapsed) {
  RankShare& rank = ranks_.at(slot);
  const uint64_t limit = rank.limit[direction];
  if (need.up_to > limit && need.in < absl::ZeroDuration()) {
    LateCopies& late = rank.late[direction];
    late.copies +=
        std::exchange(rank.late_end[direction], need.up_to) != need.up_to;
    late.seconds += absl::ToDoubleSeconds(std::min(-need.in, elapsed));
  }
  const bool counts = rank.sharer.holds && need.up_to > limit;
  const uint64_t bytes = counts ? need.up_to - limit : 0;
  shares_.Need(FlowOf(slot, direction), static_cast<double>(bytes),
               now_ + need.in);
}

std::map<int, GrantPolicy::Grant> GrantPolicy::Refill(
    const std::map<int, Directions>& used, absl::Duration elapsed,
    const std::map<int, Needs>& needs) {
  elapsed = std::max(elapsed, absl::ZeroDuration());
  now_ += elapsed;
  settled_ = true;
  for (auto& [slot, rank] : ranks_) {
    const auto* said = FindOrNull(used, slot);
    if (said != nullptr) Believe(rank, *said, elapsed);
    for (int d : {kH2d, kD2h}) {
      const uint64_t wanted = Wanted(rank, d);
      if (wanted > 0 || rank.rate[d] > 0) settled_ = false;
      if (!Gated(rank, d)) {
        rank.limit[d] += wanted;
        continue;
      }
      shares_.SetWanted(FlowOf(slot, d), static_cast<double>(wanted));
      TellNeed(slot, d, FindOr(needs, slot)[d], elapsed);
      Want(rank, d, wanted > 0 && rank.sharer.holds);
    }
  }
  for (const auto& [slot, rank] : ranks_) {
    for (int d : {kH2d, kD2h}) {
      if (!Gated(rank, d)) continue;
      const double weight = EvenRate(rank, d, wanting_[d]);
      shares_.Reweigh(FlowOf(slot, d),
                      rank.sharer.holds ? weight : kLastOfAll * weight);
    }
  }
  const std::map<int, double> given = shares_.Share(now_, elapsed);
  for (auto& [slot, rank] : ranks_) {
    for (int d : {kH2d, kD2h}) {
      Raise(rank, d, FindOr(given, FlowOf(slot, d)), elapsed);
    }
  }
  std::map<int, Grant> grants;
  for (const auto& [slot, rank] : ranks_) grants[slot] = GrantOf(rank);
  return grants;
}

bool GrantPolicy::IsSettled(const std::map<int, Directions>& used) const {
  const auto as_before = [](const auto& rank, const auto& said) {
    return rank.first == said.first && rank.second.used == said.second;
  };
  return settled_ && std::ranges::equal(ranks_, used, as_before);
}

void GrantPolicy::Raise(RankShare& rank, int direction, double bytes,
                        absl::Duration elapsed) {
  if (elapsed <= absl::ZeroDuration()) return;
  double& rest = rank.rest[direction];
  rest += bytes;
  const double whole = std::floor(rest);
  rest -= whole;
  rank.limit[direction] += static_cast<uint64_t>(whole);
  double& average = rank.rate[direction];
  const double fresh = std::min(1.0, absl::FDivDuration(elapsed, kRateOver));
  average += fresh * (bytes / absl::ToDoubleSeconds(elapsed) - average);
  if (average < 1) average = 0;
}

void GrantPolicy::CheckInvariants() const {
  shares_.CheckInvariants();
  for (const auto& [slot, rank] : ranks_) {
    SLUICE_CHECK(slot >= 0 && slot < kGrantSlots);
    for (int d : {kH2d, kD2h}) {
      SLUICE_CHECK(rank.used[d] <= rank.limit[d] + kOneCopy);
    }
  }
}

}  // namespace sluice::daemon
