// Who may copy how much next: earliest deadline first over constant-bandwidth
// servers, on every link of a node at once.
//
// A *flow* is what one rank copies in one direction. Each has a server
// (server.h). What a refill has to give, what the links carry in a window, goes
// out in three rounds:
//
//   1. each domain (admission.h) gives its own flows what it was promised for
//      them, the earliest deadline first;
//   2. what is left goes to what is promised still, the earliest deadline
//      first, so that promised copies come as early as they can;
//   3. what is left then is lent at once to whatever else is asked for: first
//      to copies that a fair share would make late (due_first.h), the one that
//      is due first first;
//   4. and the rest in weighted max-min shares (fair_shares.h).
//
// Round 1 alone keeps every promise. What a flow got by its promise and in
// round 3 counts in round 4, so that both are a part of a fair share and not
// beside it; what was more than that is remembered, by promise at most as much
// as a period brings, by deadline at most what the path carries in `ahead`. Of
// equal deadlines prefetches go first, because a late one stops a step where a
// late offload only keeps a buffer; flows of one direction share by weight.
// Where it is lent a prefetch weighs `prefetch_first` times an offload, which
// matters where both load one channel: in front, but nobody starves.
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

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/bandwidth/admission.h"
#include "daemon/bandwidth/demand.h"
#include "daemon/bandwidth/server.h"
#include "daemon/bandwidth/topology.h"

namespace sluice::daemon::bandwidth {

struct BandwidthOptions {
  double promised = 0.9;  // at most this part of each channel
  double prefetch_first = 8;
  // What a flow may be lent before the others have come up to it: what its path
  // carries in this time.
  absl::Duration ahead = absl::Milliseconds(200);
};

class BandwidthPolicy {
 public:
  explicit BandwidthPolicy(Topology topology, BandwidthOptions options = {});
  BandwidthPolicy(const BandwidthPolicy&) = delete;  // admission_ points inside

  // `flow`: the caller's number. It copies over `link` and all above it. Flows
  // of one `owner` on one link are ahead by deadlines together by as much as
  // one of them may be; without one it is the only one of its owner.
  void Open(int flow, int link, int direction, double weight = 1,
            std::optional<int> owner = std::nullopt);
  // What was asked for and not shared out is forgotten.
  void Close(int flow);
  // Likewise, and `flow` is promised nothing; what it had ahead by deadlines
  // still counts.
  void EndPromise(int flow);
  // `weight` counts from now on.
  void Reweigh(int flow, double weight);

  // Promises `demand` to a flow that was promised nothing: whatever it asks
  // for, up to the demand's bytes in any period, is shared out before the
  // demand's deadline after it was asked for. From the next idle instant on
  // (admission.h). Refusals: Admission::Admit.
  absl::Status Promise(int flow, const Demand& demand, absl::Time now);
  // A promise that was refused is refused again until this rises; it may by
  // itself while `changing`, and else when a flow is closed.
  uint64_t given_back() const { return admission_.given_back(); }
  bool changing() const { return admission_.changing_anywhere(); }
  bool IsBinding(int flow) const { return flows_.at(flow).binding; }

  // `bytes` more; `needed_by`: Server::Ask.
  void Ask(int flow, double bytes, absl::Time now,
           absl::Time needed_by = absl::InfinitePast());
  // Asks for as much more or less that `bytes` in all are asked for and not
  // shared out. What is released already stays.
  void AskInAll(int flow, double bytes, absl::Time now);

  // The copy in front of what the flow asked for: `bytes` of it are not shared
  // out yet, and compute needs them at `due`. In the place of what was said
  // before; 0 bytes: nothing is known. A rank's own word, which nobody has
  // checked: it is promised nothing by it.
  void Need(int flow, double bytes, absl::Time due);

  // What each flow may copy in the `window` from `now` on, by flow; those that
  // get nothing are not in it. Promises are kept to the moment where windows
  // end at deadlines; elsewhere a copy is late by less than a window.
  std::map<int, double> Share(absl::Time now, absl::Duration window);

  // When budget comes back that something asked for waits for: a window that
  // ends there loses nothing. Never: InfiniteFuture.
  absl::Time next_return() const;
  // The earliest deadline of what was promised and asked for, likewise.
  absl::Time next_deadline() const;

  const Topology& topology() const { return topology_; }
  void CheckInvariants() const;

 private:
  struct Flow {
    int direction = 0;
    double weight = 1;
    int gate = 0;
    std::vector<int> path;
    Server server;
    std::optional<int> demand;  // its number in admission_
    bool binding = false;
    double ahead = 0;  // bytes by promise beyond a fair share, lately
    double lead = 0;   // and by deadlines
    double most_lead = 0;
    // Whose `lead` counts together: owner and channel.
    std::pair<int, int> leader;
    double needed = 0;  // bytes of the copy in front, at `due`
    absl::Time due = absl::InfiniteFuture();
  };
  // Released bytes with one deadline, of one flow.
  struct Due {
    absl::Time deadline;
    Flow* flow;
    int id;
    double bytes;
    auto Rank() const { return std::pair(deadline, flow->direction); }
  };
  void BindIfIdle(int gate, absl::Time now);
  void BindWhereIdle(absl::Time now);
  std::vector<Due> AllDue();
  // Shares `room` among `due`, rank by rank. Over `path(flow)`; adds to
  // `given`.
  template <typename PathOf>
  static void ByDeadline(std::vector<Due>& due, std::vector<double>& room,
                         const PathOf& path, std::map<int, double>& given);
  void SharePromised(absl::Duration window, std::vector<double>& room,
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
  Admission admission_;
  std::vector<std::vector<int>> gate_paths_;  // {channel}, by channel
  std::map<int, Flow> flows_;
  std::map<int, Demand> demands_;      // promised, by number
  std::map<int, int> flow_of_demand_;  // those that did not leave
  int next_demand_ = 0;
};

}  // namespace sluice::daemon::bandwidth
