// Decides how much each flow may copy next: floors first, then fair shares, on
// every link of a node at once.
//
// A *flow* is what one rank copies in one direction. A refill distributes what
// the links carry in a window, in three rounds:
//
//   1. A flow with a promise gets what it wants up to its floor: the bytes of
//      its promised rate in the last kPeriod that it has not used.
//   2. Copies that a fair share would make late (shares.h) are lent bandwidth,
//      in the order of their deadlines.
//   3. All other bandwidth is lent in weighted max-min shares (shares.h).
//
// The caller promises less than a channel carries, so every promise is kept
// over spans of kPeriod. The bytes of rounds 1 and 2 are a part of a flow's
// fair share: they count in round 3. Bytes beyond the fair share count in round
// 3 of later windows, up to a limit: for promises the bytes of the rate in one
// kPeriod, for deadlines what the path carries in kAhead.
//
// Not earliest deadline first with servers: that is exact for copies that are
// due before their period ends, but every promise here is a rate.
//
// Time is an argument of Share and never falls. Bytes are double, because
// shares are fractions; the caller rounds.
// Thread safety: none; one thread owns a BandwidthPolicy.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/bandwidth/topology.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon::bandwidth {

class BandwidthPolicy {
 public:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(20);
  static constexpr absl::Duration kAhead = absl::Milliseconds(200);
  // The weight of a prefetch relative to an offload in fair shares. On a
  // channel that carries both, prefetches get most, but no offload starves.
  static constexpr double kPrefetchFirst = 8;

  explicit BandwidthPolicy(Topology topology)
      : topology_(std::move(topology)) {}

  // Adds a flow with the caller's number `flow`, which copies over `link` and
  // all links above it. The flows of one `owner` on one link and direction
  // share a limit of loans by deadline; a flow without an owner has its own.
  void Open(int flow, int link, int direction, double weight = 1,
            std::optional<int> owner = std::nullopt);
  void Close(int flow) { flows_.erase(flow); }
  void Reweigh(int flow, double weight);

  // Promises `flow` at least `rate` bytes per second of what it wants; 0 ends
  // the promise. The promises of a channel together must be less than its
  // capacity (planning/demands.h admits them); else they are kept in part.
  void Promise(int flow, double rate);

  // Sets how many more bytes the flow wants than it was granted so far.
  void SetWanted(int flow, double bytes) { flows_.at(flow).wanted = bytes; }

  // Sets the deadline of the flow's first copy: `bytes` of the copy are not
  // granted yet, and compute needs them at `due`. 0 bytes: no deadline is
  // known. A deadline is not checked, so it promises nothing.
  void Need(int flow, double bytes, absl::Time due);

  // Returns what each flow may copy in the `window` from `now` on. Flows that
  // get nothing are absent.
  std::map<int, double> Share(absl::Time now, absl::Duration window);

  const Topology& topology() const { return topology_; }
  void CheckInvariants() const;

 private:
  struct Flow {
    int direction = 0;
    double weight = 1;
    std::vector<int> path;
    double wanted = 0;
    double given = 0;  // in this window
    double rate = 0;   // promised
    double lent_weight() const {
      return weight * (direction == kH2d ? kPrefetchFirst : 1);
    }
    void Give(double bytes) {
      wanted -= bytes;
      given += bytes;
    }
    // The part of the last kPeriod for which the flow has not used its promise.
    // A time, not bytes, so that ending and renewing a promise gains nothing.
    absl::Duration unused = kPeriod;
    double ahead = 0;  // recent bytes beyond a fair share, by promise
    double lead = 0;   // recent bytes beyond a fair share, by deadlines
    double most_lead = 0;
    // Owner and channel. Flows with the same pair share one limit of `lead`.
    std::pair<int, int> leader;
    double needed = 0;  // bytes of the first copy that are needed at `due`
    absl::Time due = absl::InfiniteFuture();
  };
  void KeepFloors(absl::Duration window, std::vector<double>& room);
  void Lend(absl::Time now, absl::Duration window, std::vector<double>& room);
  void LendToLate(absl::Time now, absl::Duration window,
                  std::vector<double>& room);

  const Topology topology_;
  std::map<int, Flow> flows_;
};

}  // namespace sluice::daemon::bandwidth
