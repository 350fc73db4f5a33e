#include "daemon/core/grants.h"

#include <algorithm>

#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// "Not limited": far ahead, and far from overflow.
constexpr uint64_t kUngated = uint64_t{1} << 44;

// Who wants little now would have its share if it wanted more. 0: not limited.
uint64_t RateToTell(double link, int sharing, double guaranteed,
                    double granted) {
  if (link <= 0) return 0;
  return static_cast<uint64_t>(
      std::max({link / std::max(1, sharing), guaranteed, granted}));
}

}  // namespace

GrantPolicy::GrantPolicy(std::vector<LinkSpeed> links)
    : links_(std::move(links)) {}

double GrantPolicy::Rate(int link, int direction) const {
  if (link < 0) return 0;
  return direction == kH2d ? links_[link].h2d_bytes_per_second
                           : links_[link].d2h_bytes_per_second;
}

int GrantPolicy::Sharing(int link) const {
  return static_cast<int>(std::count_if(
      ranks_.begin(), ranks_.end(),
      [&](const auto& entry) { return entry.second.link == link; }));
}

uint64_t GrantPolicy::Window(int link, int direction) const {
  const double rate = Rate(link, direction);
  if (rate <= 0) return kUngated;
  const absl::Duration window = Sharing(link) <= 1 ? kWindowAlone : kWindow;
  return std::max(kMinWindow,
                  static_cast<uint64_t>(rate * absl::ToDoubleSeconds(window)));
}

GrantPolicy::Grant GrantPolicy::GrantOf(const RankShare& rank) const {
  Grant grant{rank.limit, {0, 0}};
  const int sharing = Sharing(rank.link);
  for (int d : {kH2d, kD2h}) {
    grant.rate[d] =
        RateToTell(Rate(rank.link, d), sharing, rank.guaranteed, rank.rate[d]);
  }
  return grant;
}

GrantPolicy::Grant GrantPolicy::Attach(int slot, int link,
                                       double guaranteed_bytes_per_second) {
  SLUICE_CHECK(!ranks_.contains(slot));
  SLUICE_CHECK(link < static_cast<int>(links_.size()));
  RankShare& rank = ranks_[slot];
  rank.link = link;
  rank.guaranteed = guaranteed_bytes_per_second;
  // The first window is a gift, so that a rank starts without waiting.
  rank.limit = {Window(link, kH2d), Window(link, kD2h)};
  return GrantOf(rank);
}

GrantPolicy::Grant GrantPolicy::Resume(int slot, int link,
                                       double guaranteed_bytes_per_second,
                                       const Directions& limit,
                                       const Directions& used) {
  Attach(slot, link, guaranteed_bytes_per_second);
  RankShare& rank = ranks_.at(slot);
  for (int d : {kH2d, kD2h}) {
    rank.used[d] = std::min(used[d], limit[d] + kOneCopy);
    rank.limit[d] = std::max(limit[d], rank.used[d]);
  }
  return GrantOf(rank);
}

void GrantPolicy::Detach(int slot) { ranks_.erase(slot); }

std::map<int, Directions> GrantPolicy::used() const {
  std::map<int, Directions> used;
  for (const auto& [slot, rank] : ranks_) used[slot] = rank.used;
  return used;
}

void GrantPolicy::Believe(RankShare& rank, const Directions& said,
                          absl::Duration elapsed) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(elapsed));
  for (int d : {kH2d, kD2h}) {
    uint64_t most = rank.limit[d] + kOneCopy;
    // Where the speed is not known nothing is gated, and nobody loses by a lie.
    if (const double rate = Rate(rank.link, d); rate > 0) {
      const auto carried = static_cast<uint64_t>(rate * seconds);
      most = std::min(most, rank.used[d] + kOneCopy + carried);
    }
    rank.used[d] =
        std::clamp(said[d], rank.used[d], std::max(rank.used[d], most));
  }
}

std::map<int, GrantPolicy::Grant> GrantPolicy::Refill(
    const std::map<int, Directions>& used, absl::Duration elapsed) {
  for (auto& [slot, rank] : ranks_) {
    const auto said = used.find(slot);
    if (said != used.end()) Believe(rank, said->second, elapsed);
  }
  for (int link = -1; link < static_cast<int>(links_.size()); ++link) {
    for (int d : {kH2d, kD2h}) RefillLink(link, d, elapsed);
  }
  std::map<int, int> sharing;  // by link: counted once, not for each rank
  for (const auto& [slot, rank] : ranks_) ++sharing[rank.link];
  std::map<int, Grant> grants;
  for (const auto& [slot, rank] : ranks_) {
    Grant& grant = grants[slot];
    grant.limit = rank.limit;
    for (int d : {kH2d, kD2h}) {
      grant.rate[d] = RateToTell(Rate(rank.link, d), sharing[rank.link],
                                 rank.guaranteed, rank.rate[d]);
    }
  }
  return grants;
}

// The sum of clamp(level, promised, bytes) over all grows with the level, in
// straight pieces between these bounds.
double GrantPolicy::Level(const std::vector<Want>& wants, double bytes) {
  std::vector<std::pair<double, int>> bends;  // where, how the slope changes
  double sum = 0;
  for (const Want& want : wants) {
    bends.emplace_back(want.promised, 1);
    bends.emplace_back(want.bytes, -1);
    sum += want.promised;
  }
  std::sort(bends.begin(), bends.end());
  double level = 0;
  int slope = 0;
  for (const auto& [at, change] : bends) {
    const double rise = slope * (at - level);
    if (slope > 0 && sum + rise >= bytes) {
      return level + std::max(0.0, bytes - sum) / slope;
    }
    sum += rise;
    level = at;
    slope += change;
  }
  return level;  // enough for all
}

void GrantPolicy::RefillLink(int link, int direction, absl::Duration elapsed) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(elapsed));
  const uint64_t window = Window(link, direction);
  const double rate = Rate(link, direction);
  std::vector<Want> wants;
  for (auto& [slot, rank] : ranks_) {
    if (rank.link != link) continue;
    const uint64_t target = rank.used[direction] + window;
    const double want =
        target > rank.limit[direction]
            ? static_cast<double>(target - rank.limit[direction])
            : 0;
    wants.push_back({&rank, std::min(want, rank.guaranteed * seconds), want});
  }
  const double level = rate > 0 ? Level(wants, rate * seconds) : kUngated;
  const double fresh = std::min(1.0, absl::FDivDuration(elapsed, kRateOver));
  for (const Want& want : wants) {
    const auto given =
        static_cast<uint64_t>(std::clamp(level, want.promised, want.bytes));
    want.rank->limit[direction] += given;
    if (seconds <= 0) continue;
    double& average = want.rank->rate[direction];
    average += fresh * (static_cast<double>(given) / seconds - average);
  }
}

void GrantPolicy::CheckInvariants() const {
  for (const auto& [slot, rank] : ranks_) {
    SLUICE_CHECK(slot >= 0 && slot < kGrantSlots);
    for (int d : {kH2d, kD2h}) {
      SLUICE_CHECK(rank.used[d] <= rank.limit[d] + kOneCopy);
    }
  }
}

}  // namespace sluice::daemon
