// Simulates a node with copies that run as the bandwidth policy grants them, in
// injected time. Only the links are simulated, not the policy.
//
// Time advances in windows of at most a tick. The last window of RunUntil may
// be shorter. A copy is done at the end of the window that carried its last
// byte. After each window the simulation checks that no channel carried more
// than its capacity, and that a flow that wants more has a saturated channel on
// its path.
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
  // `due` is for the caller; the policy does not see it.
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

  // Advances to `until`. `on_done` may call Ask.
  void RunUntil(absl::Time until, const OnDone& on_done = nullptr);

  // Bytes that a channel carried, that a flow copied, and that a flow waits
  // for.
  double carried(int channel) const { return carried_[channel]; }
  double copied(int flow) const { return lines_.at(flow).copied; }
  double backlog(int flow) const { return lines_.at(flow).backlog; }
  // Returns the number of the flow's copies that are due but not done.
  int overdue(int flow) const;
  // Returns the longest time in which the flow waited without getting a byte,
  // including the current wait.
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
