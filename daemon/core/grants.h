// Bandwidth policy: how far each rank's limit moves at a refill.
//
// In each refill the links give out what they carried in the time since the
// last one, by daemon/bandwidth. Every rank wants its limit to stand a window
// ahead of its use, each direction by itself. What its plan copies is promised
// to it (planning/demands.h admits that), over spans of 20 ms;
// the rest goes to users by weight, and to the ranks of one user evenly, of
// which the promised bytes are a part; what one leaves goes to the others. A
// rank that holds no memory is promised nothing, and gets what no other rank
// wants. Where both directions load a link
// together, a prefetch weighs 8 times an offload there. A rank alone on its
// link has a wide window, because the link itself is the only limit.
//
// A rank may say when the copy in front is needed (`needs`). What is lent goes
// first to copies that a fair share would make late, the one due first first,
// as far ahead of the others as bandwidth_policy.h allows: a rank that names
// what it likes has its share earlier, and no more of it.
//
// What a rank says it used is believed as far as it can be: what its link
// carries in the time, and one copy ahead of the limit. So a rank that claims
// more than it copies has the share of one that copies all the time, and no
// more.
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

// What decides a rank's share of links.
struct GrantSharer {
  Principal who;
  double weight = 1;  // of its user beside others (WeightOf)
  bool holds = true;  // memory, which it can copy to or from
};

class GrantPolicy {
 public:
  // With others on the link; and alone.
  static constexpr absl::Duration kWindow = absl::Milliseconds(20);
  static constexpr absl::Duration kWindowAlone = absl::Milliseconds(250);
  // A window is never smaller: a copy larger than its window waits for
  // several refills.
  static constexpr uint64_t kMinWindow = 1 << 20;
  // What a rank may have started beyond its limit: a copy is counted before it
  // waits. Larger ones are believed bit by bit.
  static constexpr uint64_t kOneCopy = 64 << 20;
  // Over what time the rate that a rank is granted is averaged.
  static constexpr absl::Duration kRateOver = absl::Milliseconds(100);

  // `rate`: bytes per second that the rank is granted, or would be if it wanted
  // all the time; 0: not limited.
  struct Grant {
    Directions limit = {0, 0};
    Directions rate = {0, 0};
  };

  // Links that TopologyOf (links.h) refuses are a bug of the caller.
  explicit GrantPolicy(std::vector<LinkSpeed> links);

  // `link` is an index into the links; -1: on none that is known (ungated).
  // Returns the first limits.
  Grant Attach(int slot, int link, const GrantSharer& sharer = {});
  // As Attach, of a rank that an earlier daemon attached: from what it was
  // granted, and has used as far as that can be believed.
  Grant Resume(int slot, int link, const GrantSharer& sharer,
               const Directions& limit, const Directions& used);
  void Detach(int slot);
  // Whether it holds memory from now on.
  void Hold(int slot, bool holds);
  // What its copies were promised beside others, bytes per second of each
  // direction.
  void Promise(int slot, const CopyRates& rates);
  // What each attached slot has used, as far as believed at the last refill.
  std::map<int, Directions> used() const;
  bool idle() const { return ranks_.empty(); }

  // The late copies (late_copies.h) of each attached slot since it was attached
  // or resumed. None where the link's speed is not known.
  std::map<int, LateDirections> late() const;

  // The copy in front of a direction's queue, as the rank says: it ends at this
  // byte (counted as `used`), and compute needs it so long from now. 0: not
  // told.
  struct Need {
    uint64_t up_to = 0;
    absl::Duration in;
  };
  using Needs = std::array<Need, 2>;

  // `used`, and what is told of `needs`, of every attached slot, read just now.
  // The new limits are never below the old ones.
  std::map<int, Grant> Refill(const std::map<int, Directions>& used,
                              absl::Duration elapsed,
                              const std::map<int, Needs>& needs = {});

  // True if a refill with this use would change nothing, as the last one did:
  // no rank wants anything, and all averages have run out. Pass then stands for
  // it, so a node on which all ranks compute costs next to nothing.
  bool IsSettled(const std::map<int, Directions>& used) const;
  void Pass(absl::Duration elapsed);

  void CheckInvariants() const;

 private:
  struct RankShare {
    int link = -1;
    GrantSharer sharer;
    int user = 0;  // the same for ranks of the same principal
    std::array<bool, 2> wants = {false, false};  // counted in wanting_
    CopyRates demand = {0, 0};                   // promised, of its plan
    Directions limit = {0, 0};
    Directions used = {0, 0};             // as far as believed
    std::array<double, 2> rate = {0, 0};  // granted, averaged
    std::array<double, 2> rest = {0, 0};  // granted, less than a byte
    std::array<LateCounter, 2> late;
  };
  // What the narrowest link of the path carries; 0: none is limited.
  double Rate(int link, int direction) const;
  // What it would have of its path if all `sharers` wanted all they get: the
  // least of its parts of these links.
  double EvenRate(const RankShare& rank, int direction,
                  const LinkSharers& sharers) const;
  int UserOf(const Principal& who) const;
  // One more or less on the rank's path.
  void Count(LinkSharers& sharers, const RankShare& rank, bool more);
  // Counts whether it wants more of that direction.
  void Want(RankShare& rank, int direction, bool wants);
  // Its share beside those that want more now.
  void Reweigh(int slot, int direction);
  uint64_t Window(int link, int direction) const;
  // Flows on the busiest limited link of the path: ranks, or twice as many
  // where both directions load it together.
  int Sharing(int link, int direction) const;
  void Believe(RankShare& rank, const Directions& said, absl::Duration elapsed);
  bool Gated(const RankShare& rank, int direction) const {
    return Rate(rank.link, direction) > 0;
  }
  // How far the limit is to rise so that it stands a window ahead of the use.
  uint64_t Wanted(const RankShare& rank, int direction) const;
  // Bytes of that copy beyond the limit, and when; counts it where it is late.
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
  std::array<LinkSharers, 2> wanting_;      // those of them that want more
  bandwidth::BandwidthPolicy shares_;       // of the directions that are gated
  absl::Time now_ = absl::UnixEpoch();      // the refills' own
  std::map<int, RankShare> ranks_;
  bool settled_ = false;
};

}  // namespace sluice::daemon
