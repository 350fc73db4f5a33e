#include "daemon/core/grants.h"

#include <algorithm>

#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// "Not limited": far ahead, and far from overflow.
constexpr uint64_t kUngated = uint64_t{1} << 44;
// The most a rank is believed to have started beyond its limit: one copy.
constexpr uint64_t kMaxOverrun = uint64_t{1} << 36;

}  // namespace

GrantPolicy::GrantPolicy(std::vector<LinkSpeed> links)
    : links_(std::move(links)) {}

double GrantPolicy::Rate(int link, int direction) const {
  if (link < 0) return 0;
  return direction == kH2d ? links_[link].h2d_bytes_per_second
                           : links_[link].d2h_bytes_per_second;
}

uint64_t GrantPolicy::Window(int link, int direction) const {
  const double rate = Rate(link, direction);
  if (rate <= 0) return kUngated;
  const auto sharing = std::count_if(
      ranks_.begin(), ranks_.end(),
      [&](const auto& entry) { return entry.second.link == link; });
  const absl::Duration window = sharing <= 1 ? kWindowAlone : kWindow;
  return std::max(kMinWindow,
                  static_cast<uint64_t>(rate * absl::ToDoubleSeconds(window)));
}

Directions GrantPolicy::Attach(int slot, int link,
                               double guaranteed_bytes_per_second) {
  SLUICE_CHECK(!ranks_.contains(slot));
  SLUICE_CHECK(link < static_cast<int>(links_.size()));
  RankShare& rank = ranks_[slot];
  rank.link = link;
  rank.guaranteed = guaranteed_bytes_per_second;
  // The first window is a gift, so that a rank starts without waiting.
  rank.limit = {Window(link, kH2d), Window(link, kD2h)};
  return rank.limit;
}

void GrantPolicy::Detach(int slot) { ranks_.erase(slot); }

std::map<int, Directions> GrantPolicy::used() const {
  std::map<int, Directions> used;
  for (const auto& [slot, rank] : ranks_) used[slot] = rank.used;
  return used;
}

std::map<int, Directions> GrantPolicy::Refill(
    const std::map<int, Directions>& used, absl::Duration elapsed) {
  for (auto& [slot, rank] : ranks_) {
    const auto said = used.find(slot);
    if (said == used.end()) continue;
    for (int d : {kH2d, kD2h}) {
      rank.used[d] = std::clamp(said->second[d], rank.used[d],
                                rank.limit[d] + kMaxOverrun);
    }
  }
  for (int link = -1; link < static_cast<int>(links_.size()); ++link) {
    for (int d : {kH2d, kD2h}) RefillLink(link, d, elapsed);
  }
  std::map<int, Directions> limits;
  for (const auto& [slot, rank] : ranks_) limits[slot] = rank.limit;
  return limits;
}

void GrantPolicy::RefillLink(int link, int direction, absl::Duration elapsed) {
  struct Want {
    RankShare* rank;
    double bytes;
  };
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const uint64_t window = Window(link, direction);
  const double rate = Rate(link, direction);
  double left = rate > 0 ? rate * seconds : 1e30;
  std::vector<Want> wants;
  const auto give = [&](RankShare& rank, double bytes) {
    rank.limit[direction] += static_cast<uint64_t>(bytes);
    left -= bytes;
  };
  for (auto& [slot, rank] : ranks_) {
    if (rank.link != link) continue;
    const uint64_t target = rank.used[direction] + window;
    if (target <= rank.limit[direction]) continue;
    double want = static_cast<double>(target - rank.limit[direction]);
    const double promised = std::min(want, rank.guaranteed * seconds);
    give(rank, promised);
    want -= promised;
    if (want >= 1) wants.push_back({&rank, want});
  }
  // Max-min: smallest wants first, each at most an even share of what is left.
  std::sort(wants.begin(), wants.end(),
            [](const Want& a, const Want& b) { return a.bytes < b.bytes; });
  for (size_t i = 0; i < wants.size() && left > 0; ++i) {
    const double even = left / static_cast<double>(wants.size() - i);
    give(*wants[i].rank, std::min(wants[i].bytes, even));
  }
}

void GrantPolicy::CheckInvariants() const {
  for (const auto& [slot, rank] : ranks_) {
    SLUICE_CHECK(slot >= 0 && slot < kGrantSlots);
    for (int d : {kH2d, kD2h}) {
      SLUICE_CHECK(rank.used[d] <= rank.limit[d] + kMaxOverrun);
    }
  }
}

}  // namespace sluice::daemon
