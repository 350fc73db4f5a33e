// Bandwidth policy: how far each rank's limit moves at a refill.
//
// Each refill distributes, by daemon/bandwidth, the bytes that the links could
// carry since the last refill. In each direction, a rank's limit should be one
// window (kWindow) ahead of its use. The rates that a rank's plan needs are
// promised (planning/demands.h admits them), over spans of 20 ms. All else goes
// to users by weight, and evenly to the ranks of one user. Promised bytes are a
// part of that share, and what one rank does not use goes to the others. A rank
// without memory is promised nothing, and gets only what no other rank wants. A
// rank alone on its link has a wide window: the link itself is the only limit.
//
// A rank may state when compute needs the copy at the front of its queue
// (proto/base/grant_page.h). Bandwidth is lent first to copies that a fair
// share would make late (bandwidth_policy.h). A rank that states false
// deadlines gets its share earlier, but no more of it.
//
// Thread safety: none; one thread owns a GrantPolicy (the refill thread).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "daemon/bandwidth/bandwidth_policy.h"
#include "daemon/core/node/types.h"

namespace sluice::daemon {

// Cumulative bytes, kH2d and kD2h (proto/base/grant_page.h).
using Directions = std::array<uint64_t, 2>;

struct GrantSharer {
  Principal who;
  double weight = 1;  // of its user
  bool holds = true;  // the rank has memory to copy to or from
};

// Shares of each link: by users' weights, and evenly among a user's ranks, so
// that more ranks give a user no larger share.
class LinkSharers {
 public:
  explicit LinkSharers(size_t links) : links_(links) {}

  // Adds `more` (1 or -1) ranks of `user` to each link of `path`. `user` is a
  // small index. The weight is the same for all ranks of a user.
  void Count(const std::vector<size_t>& path, int user, double weight,
             int more);
  int ranks(size_t link) const { return links_[link].ranks; }
  // Returns the share of `link` that a rank of the user has, or would have if
  // it were counted.
  double PartOf(size_t link, int user, double weight) const;

 private:
  struct Link {
    int ranks = 0;
    double weight = 0;  // sum of all users, each counted once
    std::vector<int> ranks_of;
  };
  std::vector<Link> links_;
};

class GrantPolicy {
 public:
  // The window of a rank that shares its link.
  static constexpr absl::Duration kWindow = absl::Milliseconds(20);
  // The window of a rank that is alone on its link.
  static constexpr absl::Duration kWindowAlone = absl::Milliseconds(250);
  // The smallest window. A copy larger than its window takes several refills.
  static constexpr uint64_t kMinWindow = 1 << 20;
  // Bytes by which a rank's use may exceed its limit: a copy is counted before
  // it waits for the limit. A larger copy is believed in steps of this size.
  static constexpr uint64_t kOneCopy = 64 << 20;
  // The time over which the granted rate is averaged.
  static constexpr absl::Duration kRateOver = absl::Milliseconds(100);

  struct Grant {
    Directions limit = {0, 0};
    // Bytes per second that the rank is granted, or would be if it copied all
    // the time; 0: not limited.
    Directions rate = {0, 0};
  };

  // REQUIRES: bandwidth::Topology::Make accepts the links.
  explicit GrantPolicy(std::vector<LinkSpeed> links);

  // Adds a rank and returns its first limits. `link` is an index into the
  // links; -1: unknown, so the rank is not limited.
  Grant Attach(int slot, int link, const GrantSharer& sharer = {});
  // Adds a rank that an earlier daemon attached. Its limits continue from
  // `limit`, or from `used` if that is higher, by at most kOneCopy.
  Grant Resume(int slot, int link, const GrantSharer& sharer,
               const Directions& limit, const Directions& used);
  void Detach(int slot);
  void Hold(int slot, bool holds);
  void Promise(int slot, const CopyRates& rates);
  // Returns the use of each attached slot as believed at the last refill.
  std::map<int, Directions> used() const {
    std::map<int, Directions> used;
    for (const auto& [slot, rank] : ranks_) used[slot] = rank.used;
    return used;
  }
  bool idle() const { return ranks_.empty(); }

  // Returns the late copies of each attached slot since it was attached or
  // resumed; 0 on a link of unknown speed.
  std::map<int, LateDirections> late() const {
    std::map<int, LateDirections> late;
    for (const auto& [slot, rank] : ranks_) late[slot] = rank.late;
    return late;
  }

  // The copy at the front of a direction's queue, as the rank states it.
  struct Need {
    uint64_t up_to = 0;  // the byte at which the copy ends; 0: not stated
    absl::Duration in;   // the time until compute needs the copy
  };
  using Needs = std::array<Need, 2>;

  // Returns new limits, from the current use and the stated `needs` of every
  // attached slot. A new limit is never below the old one.
  std::map<int, Grant> Refill(const std::map<int, Directions>& used,
                              absl::Duration elapsed,
                              const std::map<int, Needs>& needs = {});

  // Returns whether a refill with this use would change nothing. The caller may
  // then call Pass instead, so that a node on which all ranks compute costs
  // next to nothing.
  bool IsSettled(const std::map<int, Directions>& used) const;
  void Pass(absl::Duration elapsed) {
    now_ += std::max(elapsed, absl::ZeroDuration());
  }

  void CheckInvariants() const;

 private:
  struct RankShare {
    int link = -1;
    GrantSharer sharer;
    int user = 0;  // the same for ranks of the same principal
    std::array<bool, 2> wants = {false, false};  // counted in wanting_
    CopyRates demand = {0, 0};                   // promised to its plan
    Directions limit = {0, 0};
    Directions used = {0, 0};  // as far as believed
    CopyRates rate = {0, 0};   // granted, averaged
    CopyRates rest = {0, 0};   // fractions of a byte, not granted yet
    LateDirections late;
    Directions late_end = {0, 0};  // end of the last copy counted as late
  };
  template <typename Of>
  double Least(int link, Of of) const;
  // Returns the lowest limit on the path from `link` up; 0: there is none.
  double Rate(int link, int direction) const;
  // Returns the rate that the rank would have if all `sharers` copied all the
  // time: the smallest of its shares of the links on its path.
  double EvenRate(const RankShare& rank, int direction,
                  const LinkSharers& sharers) const;
  int UserOf(const Principal& who) const;
  void Count(LinkSharers& sharers, const RankShare& rank, bool more);
  void Want(RankShare& rank, int direction, bool wants) {
    if (std::exchange(rank.wants[direction], wants) == wants) return;
    Count(wanting_[direction], rank, wants);
  }
  uint64_t Window(int link, int direction) const;
  void Believe(RankShare& rank, const Directions& said, absl::Duration elapsed);
  bool Gated(const RankShare& rank, int direction) const {
    return Rate(rank.link, direction) > 0;
  }
  // Returns by how much the limit must rise to be one window ahead of the use.
  uint64_t Wanted(const RankShare& rank, int direction) const {
    const uint64_t target = rank.used[direction] + Window(rank.link, direction);
    return target > rank.limit[direction] ? target - rank.limit[direction] : 0;
  }
  // Passes the deadline of the copy at the front to BandwidthPolicy::Need.
  // Counts the copy if it is late: compute needs it and its last byte is not
  // granted. A rank that states past times raises only its own count of late
  // copies, by at most one per refill.
  void TellNeed(int slot, int direction, const Need& need,
                absl::Duration elapsed);
  void KeepPromise(int slot, int direction);
  static void Raise(RankShare& rank, int direction, double bytes,
                    absl::Duration elapsed);
  Grant GrantOf(const RankShare& rank) const;

  const std::vector<LinkSpeed> links_;
  std::vector<std::vector<size_t>> paths_;  // LinkPath of each link
  LinkSharers holders_;                     // ranks that hold memory
  std::array<LinkSharers, 2> wanting_;      // holders that want more
  bandwidth::BandwidthPolicy shares_;       // of the gated directions
  absl::Time now_ = absl::UnixEpoch();      // the refills' own clock
  std::map<int, RankShare> ranks_;
  bool settled_ = false;
};

}  // namespace sluice::daemon
