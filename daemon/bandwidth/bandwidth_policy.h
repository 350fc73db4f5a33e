// Which flow may copy how much next: floors first, then fair shares, on every
// link of a node at once.
//
// A *flow* is what one rank copies in one direction. What a refill has to give,
// what the links carry in a window, goes out in three rounds:
//
//   1. promised flows get what they want up to their floor: what their rate
//      brings, and of the last kPeriod what they left of it;
//   2. what is left is lent: first to copies that a fair share would make late
//      (due_first.h), the one that is due first first;
//   3. and the rest in weighted max-min shares (fair_shares.h).
//
// Round 1 keeps every promise over spans of kPeriod. Its shares rise by rate,
// and the caller promises less than a channel carries, so in every window each
// flow that lacks something gets what its rate brings in it, or more. What a
// flow got by its promise and in round 2 counts in round 3, so that both are a
// part of a fair share and not beside it; what was more than that is
// remembered, by promise at most as much as a period brings, by deadline at
// most what the path carries in `ahead`. Where it is lent a prefetch weighs
// `prefetch_first` times an offload, which matters where both load one channel:
// in front, but no offload starves.
//
// Not earliest deadline first over servers: it is exact for copies that are due
// before their period ends, and every promise is a rate.
//
// Time is given with every call and never falls. Bytes are double, because
// shares are fractions; a caller rounds.
//
// Thread safety: none; one thread owns a BandwidthPolicy.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/bandwidth/topology.h"

namespace sluice::daemon::bandwidth {

struct BandwidthOptions {
  double prefetch_first = 8;
  // What a flow may be lent before the others have come up to it: what its path
  // carries in this time.
  absl::Duration ahead = absl::Milliseconds(200);
};

class BandwidthPolicy {
 public:
  // A promise is kept over spans of this length.
  static constexpr absl::Duration kPeriod = absl::Milliseconds(20);

  explicit BandwidthPolicy(Topology topology, BandwidthOptions options = {});

  // `flow`: the caller's number. It copies over `link` and all above it. Flows
  // of one `owner` on one link are ahead by deadlines together by as much as
  // one of them may be; without one it is the only one of its owner.
  void Open(int flow, int link, int direction, double weight = 1,
            std::optional<int> owner = std::nullopt);
  // What was asked for and not shared out is forgotten.
  void Close(int flow);
  // `weight` counts from now on.
  void Reweigh(int flow, double weight);

  // `flow` gets at least `rate` bytes per second of what it wants from now on;
  // 0: no promise. The promises of a channel together are to be less than it
  // carries (planning/demands.h admits them): more are kept in part.
  void Promise(int flow, double rate);

  // What the flow wants in all and was not shared out.
  void SetWanted(int flow, double bytes);

  // Replaces what is known of the flow's first copy: `bytes` of it are not
  // shared out yet, and compute needs them at `due`. 0 bytes: nothing is known.
  // It is the rank's own statement and not checked, so it promises nothing.
  void Need(int flow, double bytes, absl::Time due);

  // What each flow may copy in the `window` from `now` on, by flow; those that
  // get nothing are not in it.
  std::map<int, double> Share(absl::Time now, absl::Duration window);

  const Topology& topology() const { return topology_; }
  void CheckInvariants() const;

 private:
  struct Flow {
    int direction = 0;
    double weight = 1;
    std::vector<int> path;
    double wanted = 0;
    double rate = 0;  // promised
    // Of the last kPeriod, what it has not had by its rate. Time, not bytes: a
    // promise that comes and goes again and again brings no more.
    absl::Duration unused = kPeriod;
    double ahead = 0;  // bytes by promise beyond a fair share, lately
    double lead = 0;   // and by deadlines
    double most_lead = 0;
    // Owner and channel: flows with the same pair have one `lead`.
    std::pair<int, int> leader;
    double needed = 0;  // bytes of the copy in front, at `due`
    absl::Time due = absl::InfiniteFuture();
  };
  void KeepFloors(absl::Duration window, std::vector<double>& room,
                  std::map<int, double>& given);
  void Lend(absl::Time now, absl::Duration window, std::vector<double>& room,
            std::map<int, double>& given);
  void LendToLate(absl::Time now, absl::Duration window,
                  std::vector<double>& room, std::map<int, double>& given);
  double LentWeight(const Flow& flow) const;
  // After shares stood at `full_at` (by channel).
  void Remember(const std::vector<double>& full_at);

  const Topology topology_;
  const BandwidthOptions options_;
  std::map<int, Flow> flows_;
};

}  // namespace sluice::daemon::bandwidth
