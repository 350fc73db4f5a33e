// Jobs that come to a node, copy, and go: seeded, in injected time, over the
// real policy. What they were promised is judged here by what they asked for
// and got, without looking into the policy.
//
// A job is one rank: two flows on one GPU, one per direction. Its kind:
//
//   steady  a demand, promised as a rate if that fits; asks for it once per
//           period, in several copies spread over the period, each due by the
//           demand
//   greedy  the same demand, but has twice as much asked for at all times
//   plain   no promise; has two copies asked for at all times
//   light   no promise; asks as a steady one does
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <vector>

#include "proto/base/units.h"
#include "tests/daemon/bandwidth/node_simulation.h"

namespace sluice::daemon::bandwidth {

// `bytes` once per period, due `deadline` after they are asked for.
struct Demand {
  Bytes bytes;
  absl::Duration deadline, period;
  double rate() const {
    return static_cast<double>(bytes.count()) / absl::ToDoubleSeconds(deadline);
  }
};

struct JobStoryOptions {
  uint32_t seed = 1;
  int jobs = 50;
  std::vector<Link> links;
  std::vector<int> gpu_links;  // of each GPU: an index into `links`
  absl::Duration mean_gap = absl::Milliseconds(100);
  absl::Duration mean_life = absl::Seconds(5);
  absl::Duration tick = absl::Milliseconds(2);
  double promised = 0.9;
  // False: no flow has a promise, all share evenly. Copies are due all the
  // same.
  bool promises = true;
};

struct JobStoryResult {
  int asked = 0, admitted = 0;
  int64_t due = 0, late = 0;               // copies of the steady
  absl::Duration latest;                   // of those, after it was due
  int64_t budgets = 0, budgets_short = 0;  // of the greedy, by period
  // Plain flows that lived at least as long as the longest period, and the
  // least part that one got of its weighted share of what is never promised.
  int plain = 0;
  double least_share = 1e9;
  absl::Duration longest_wait;  // of any flow, for the next byte
  absl::Duration took;
};

class JobStory {
 public:
  explicit JobStory(JobStoryOptions options);
  // Until the last job has gone.
  JobStoryResult Run();

 private:
  enum class Kind { kSteady, kGreedy, kPlain, kLight };
  struct Flow {
    int id = 0;
    Kind kind = Kind::kLight;
    std::vector<int> path;
    double weight = 1;  // in what is lent
    Demand demand;
    int parts = 1;
    bool promised = false;
    absl::Time opened;
    double entitled = 0;
  };
  using Action = std::function<void()>;
  struct Event {
    absl::Time at;
    int64_t order;
    Action action;
    bool operator>(const Event& other) const {
      return std::pair(at, order) > std::pair(other.at, other.order);
    }
  };

  double Pick(double low, double high);
  double PickExponential(double mean);
  void At(absl::Time at, Action action);
  // As At, where the flow is still there by then.
  void Later(int flow, absl::Time at, std::function<void(Flow&)> action);

  void Arrive();
  void OpenFlow(const Flow& flow, int link, int direction);
  void CloseFlow(int id);
  // Where the links of its path have promised less than they may with it.
  bool Admit(const Flow& flow);
  void Begin(Flow& flow);
  void NextStep(Flow& flow);
  void CopyPart(Flow& flow, int part);
  void KeepBusy(Flow& flow);
  void JudgeBudget(Flow& flow, int64_t period);
  void Done(int flow, const NodeSimulation::Copy& copy);
  // Whether its copies have to be in time.
  bool Judged(const Flow& flow) const;
  void Entitle();

  const JobStoryOptions options_;
  std::mt19937 random_;
  NodeSimulation node_;
  JobStoryResult result_;
  std::map<int, Flow> flows_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<double> weights_;   // of all flows, by channel
  std::vector<double> promised_;  // rates, by channel
  absl::Time entitled_until_;
  int64_t order_ = 0;
  int next_job_ = 0;
};

}  // namespace sluice::daemon::bandwidth
