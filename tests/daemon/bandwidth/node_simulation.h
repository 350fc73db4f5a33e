// A node with copies that run as the bandwidth policy grants them, in injected
// time. The policy is the real one; only the links are simulated.
//
// Time goes in windows of at most a tick, which also end where the caller has
// something to do. A copy is done at the end of the window that brought its
// last byte. After each window it is checked that no channel carried more than
// it can, and that a flow that wants more has a saturated channel on its path.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "daemon/bandwidth/bandwidth_policy.h"

namespace sluice::daemon::bandwidth {

class NodeSimulation {
 public:
  // `due` is for the caller: the policy knows only what it promised.
  struct Copy {
    double bytes = 0;
    absl::Time asked;
    absl::Time due = absl::InfiniteFuture();
    absl::Time done = absl::InfiniteFuture();
    bool late() const { return done > due; }
  };
  using OnDone = std::function<void(int flow, const Copy&)>;

  NodeSimulation(Topology topology, absl::Duration tick);

  BandwidthPolicy& policy() { return policy_; }
  absl::Time now() const { return now_; }
  void Open(int flow, int link, int direction, double weight = 1);
  void Close(int flow);
  void Ask(int flow, double bytes, absl::Time due = absl::InfiniteFuture());

  // Until `until`; `on_done` may ask for more.
  void RunUntil(absl::Time until, const OnDone& on_done = nullptr);

  // Bytes that ran over a channel, and of a flow; what a flow waits for.
  double carried(int channel) const { return carried_[channel]; }
  double copied(int flow) const { return lines_.at(flow).copied; }
  double backlog(int flow) const { return lines_.at(flow).backlog; }
  // Copies of a flow that are due by now and not done.
  int overdue(int flow) const;
  // The longest time without a byte while it waited for some, until now too.
  absl::Duration longest_wait(int flow) const;

 private:
  struct Line {
    std::vector<int> path;
    std::deque<Copy> copies;
    double done_of_first = 0;
    double copied = 0;
    double backlog = 0;
    absl::Time last_byte;
    absl::Duration longest_wait;
  };
  void Step(absl::Duration window, const OnDone& on_done);
  void CheckWindow(const std::vector<double>& loads,
                   absl::Duration window) const;

  BandwidthPolicy policy_;
  const absl::Duration tick_;
  absl::Time now_ = absl::UnixEpoch();
  std::map<int, Line> lines_;
  std::vector<double> carried_;
};

}  // namespace sluice::daemon::bandwidth
