// Bandwidth policy: how far each rank's limit moves at a refill.
//
// Each refill distributes the bytes that the links carried since the last one,
// by daemon/bandwidth. Every rank's limit should be one window ahead of its
// use, each direction by itself. The rates that its plan needs are promised to
// it (planning/demands.h admits them), over spans of 20 ms. The rest goes to
// users by weight, and evenly to the ranks of one user; the promised bytes are
// a part of that share, and what one rank does not use goes to the others. A
// rank that holds no memory is promised nothing, and gets only what no other
// rank wants. Where both directions load a link together, a prefetch there
// weighs 8 times as much as an offload. A rank alone on its link has a wide
// window, because the link itself is the only limit.
//
// A rank may state when compute needs the copy at the front of its queue
// (`needs`). Bandwidth is lent first to copies that a fair share would make
// late, earliest deadline first, as far ahead of the others as
// bandwidth_policy.h allows: a rank with false deadlines gets its share
// earlier, but no more of it.
//
// A rank's reported use is believed up to what its link carries in the time,
// and one copy ahead of the limit. So a rank that claims more than it copies
// has the share of one that copies all the time, and no more.
//
// Thread safety: none; one thread owns a GrantPolicy (the refill thread).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "daemon/bandwidth/bandwidth_policy.h"
#include "daemon/core/late_copies.h"
#include "daemon/core/link_sharers.h"
#include "daemon/core/node/types.h"

namespace sluice::daemon {

// Cumulative bytes, kH2d and kD2h (proto/base/grant_page.h).
using Directions = std::array<uint64_t, 2>;

// What determines a rank's share of links.
struct GrantSharer {
  Principal who;
  double weight = 1;  // of its user (WeightOf)
  bool holds = true;  // has memory to copy to or from
};

class GrantPolicy {
 public:
  // The windows with others on the link, and alone.
  static constexpr absl::Duration kWindow = absl::Milliseconds(20);
  static constexpr absl::Duration kWindowAlone = absl::Milliseconds(250);
  // The smallest window: a copy larger than its window waits for several
  // refills.
  static constexpr uint64_t kMinWindow = 1 << 20;
  // The bytes that a rank may have started beyond its limit, since a copy is
  // counted before it waits. A larger copy is believed in steps of this size.
  static constexpr uint64_t kOneCopy = 64 << 20;
  // The time over which the granted rate is averaged.
  static constexpr absl::Duration kRateOver = absl::Milliseconds(100);

  // `rate`: bytes per second that the rank is granted, or would be if it wanted
  // all the time; 0: not limited.
  struct Grant {
    Directions limit = {0, 0};
    Directions rate = {0, 0};
  };

  // REQUIRES: TopologyOf (links.h) accepts the links.
  explicit GrantPolicy(std::vector<LinkSpeed> links);

  // Adds a rank and returns its first limits. `link` is an index into the
  // links; -1: unknown, so the rank is not limited.
  Grant Attach(int slot, int link, const GrantSharer& sharer = {});
  // Adds a rank that an earlier daemon attached: its limits continue from what
  // it was granted and its use, as far as that can be believed.
  Grant Resume(int slot, int link, const GrantSharer& sharer,
               const Directions& limit, const Directions& used);
  void Detach(int slot);
  // Sets whether the rank holds memory from now on.
  void Hold(int slot, bool holds);
  // Sets the rates promised to its copies, bytes per second of each direction.
  void Promise(int slot, const CopyRates& rates);
  // Returns the use of each attached slot as believed at the last refill.
  std::map<int, Directions> used() const;
  bool idle() const { return ranks_.empty(); }

  // Returns the late copies (late_copies.h) of each attached slot since it was
  // attached or resumed. Empty if the link's speed is not known.
  std::map<int, LateDirections> late() const;

  // The copy at the front of a direction's queue, as the rank states it: it
  // ends at byte `up_to` (counted as `used`), and compute needs it `in` from
  // now. 0: not stated.
  struct Need {
    uint64_t up_to = 0;
    absl::Duration in;
  };
  using Needs = std::array<Need, 2>;

  // Computes new limits from the current use of every attached slot and its
  // stated `needs`. A new limit is never below the old one.
  std::map<int, Grant> Refill(const std::map<int, Directions>& used,
                              absl::Duration elapsed,
                              const std::map<int, Needs>& needs = {});

  // Returns true if a refill with this use would change nothing, as the last
  // one did: no rank wants anything, and all averages have settled. The caller
  // may then call Pass instead, so a node where all ranks compute costs next to
  // nothing.
  bool IsSettled(const std::map<int, Directions>& used) const;
  void Pass(absl::Duration elapsed);

  void CheckInvariants() const;

 private:
  struct RankShare {
    int link = -1;
    GrantSharer sharer;
    int user = 0;  // the same for ranks of the same principal
    std::array<bool, 2> wants = {false, false};  // counted in wanting_
    CopyRates demand = {0, 0};                   // promised to its plan
    Directions limit = {0, 0};
    Directions used = {0, 0};             // as far as believed
    std::array<double, 2> rate = {0, 0};  // granted, averaged
    std::array<double, 2> rest = {0, 0};  // granted, less than a byte
    std::array<LateCounter, 2> late;
  };
  // Returns what the narrowest link of the path carries; 0 if none is limited.
  double Rate(int link, int direction) const;
  // Returns the rate that the rank would have if all `sharers` wanted all they
  // get: the smallest of its shares of the links on its path.
  double EvenRate(const RankShare& rank, int direction,
                  const LinkSharers& sharers) const;
  int UserOf(const Principal& who) const;
  // Adds the rank to, or removes it from, the sharers of its path.
  void Count(LinkSharers& sharers, const RankShare& rank, bool more);
  // Sets whether the rank wants more of that direction, and counts it.
  void Want(RankShare& rank, int direction, bool wants);
  // Recomputes the rank's weight among those that want more.
  void Reweigh(int slot, int direction);
  uint64_t Window(int link, int direction) const;
  // Returns the number of flows on the busiest limited link of the path: its
  // ranks, or twice as many where both directions load it together.
  int Sharing(int link, int direction) const;
  void Believe(RankShare& rank, const Directions& said, absl::Duration elapsed);
  bool Gated(const RankShare& rank, int direction) const {
    return Rate(rank.link, direction) > 0;
  }
  // Returns how far the limit must rise to be a window ahead of the use.
  uint64_t Wanted(const RankShare& rank, int direction) const;
  // Passes on the bytes of that copy beyond the limit and their deadline;
  // counts the copy if it is late.
  void TellNeed(int slot, int direction, const Need& need,
                absl::Duration elapsed);
  // Ends the promise if the rank holds no memory.
  void KeepPromise(int slot, int direction);
  static void Raise(RankShare& rank, int direction, double bytes,
                    absl::Duration elapsed);
  Grant GrantOf(const RankShare& rank) const;
  bool WantsNothing(const RankShare& rank) const;

  const std::vector<LinkSpeed> links_;
  std::vector<std::vector<size_t>> paths_;  // by link (links.h)
  LinkSharers holders_;                     // ranks that hold memory
  std::array<LinkSharers, 2> wanting_;      // holders that want more
  bandwidth::BandwidthPolicy shares_;       // of the gated directions
  absl::Time now_ = absl::UnixEpoch();      // the refills' own clock
  std::map<int, RankShare> ranks_;
  bool settled_ = false;
};

}  // namespace sluice::daemon
