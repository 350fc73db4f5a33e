// Simulates random jobs that arrive at a node, copy, and leave, with the real
// policy in injected time. The story judges promises only by what the jobs
// requested and got, without looking into the policy.
//
// A job is one rank: two flows on one GPU, one per direction. Its kind:
//
//   steady  has a demand, promised as a rate if there is room; requests it once
//           per period, in copies spread over the period, each with the
//           demand's deadline
//   greedy  has such a demand, and always requests twice the demand's bytes;
//           becomes plain if it gets no promise
//   plain   has no promise, and always two copies requested
//   light   has no promise, and requests like a steady job
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

// A flow requests `bytes` once per period, and needs them within `deadline`.
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
  std::vector<LinkSpeed> links;
  std::vector<int> gpu_links;  // index into `links`, per GPU
  absl::Duration mean_gap = absl::Milliseconds(100);
  absl::Duration mean_life = absl::Seconds(5);
  absl::Duration tick = absl::Milliseconds(2);
  double promised = 0.9;
  // If false, no flow has a promise, and all share by weight. Copies still have
  // deadlines.
  bool promises = true;
};

struct JobStoryResult {
  int asked = 0, admitted = 0;
  // Copies of the steady flows that have a promise, or of all steady flows if
  // `promises` is false.
  int64_t due = 0, late = 0;
  absl::Duration latest;  // the greatest delay of a late copy
  // Periods of greedy flows, and those in which a flow got too few bytes.
  int64_t budgets = 0, budgets_short = 0;
  // `plain` counts plain flows that lived for at least the longest period.
  // `least_share` is the least quotient, over these flows, of the bytes copied
  // and the flow's weighted share of the bandwidth that is never promised.
  int plain = 0;
  double least_share = 1e9;
  absl::Duration longest_wait;  // for a flow's next byte
  absl::Duration took;
};

class JobStory {
 public:
  explicit JobStory(JobStoryOptions options);
  // Runs until the last job has left.
  JobStoryResult Run();

 private:
  enum class Kind { kSteady, kGreedy, kPlain, kLight };
  struct Flow {
    int id = 0;
    Kind kind = Kind::kLight;
    std::vector<int> path;
    double weight = 1;  // its weight for bandwidth that is not promised
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
  // Like At, but does nothing if the flow has ended by then.
  void Later(int flow, absl::Time at, std::function<void(Flow&)> action);

  void Arrive();
  void OpenFlow(const Flow& flow, int link, int direction);
  void CloseFlow(int id);
  // Promises the flow its rate, and returns true, if every channel of its path
  // has room for the promise.
  bool Admit(const Flow& flow);
  void Begin(Flow& flow);
  void NextStep(Flow& flow);
  void CopyPart(Flow& flow, int part);
  void KeepBusy(Flow& flow);
  void JudgeBudget(Flow& flow, int64_t period);
  void Done(int flow, const NodeSimulation::Copy& copy);
  // Returns whether the flow's copies are counted in `due` and `late`.
  bool Judged(const Flow& flow) const;
  void Entitle();

  const JobStoryOptions options_;
  std::mt19937 random_;
  NodeSimulation node_;
  JobStoryResult result_;
  std::map<int, Flow> flows_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<double> weights_;   // sum of the flows' weights, by channel
  std::vector<double> promised_;  // sum of the promised rates, by channel
  absl::Time entitled_until_;
  int64_t order_ = 0;
  int next_job_ = 0;
};

}  // namespace sluice::daemon::bandwidth
