// Measures the bandwidth policy in injected time, for a rank that fair sharing
// would make late, 8 GPUs behind 4 switches, and 64 GPUs with 1,000 jobs. Only
// the time is simulated, not the policy, so every figure but the cost of a
// refill is the same on any machine. bench_sim.h adds figures of a real daemon.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "proto/base/grant_page.h"
#include "proto/base/status.h"
#include "tests/bench/report.h"
#include "tests/daemon/bandwidth/bench_plan.h"
#include "tests/daemon/bandwidth/bench_sim.h"
#include "tests/daemon/bandwidth/job_story.h"
#include "tests/daemon/bandwidth/node_simulation.h"

namespace sluice::daemon::bandwidth {
namespace {

using bench::Entry;

constexpr absl::Duration kTick = absl::Milliseconds(2);  // as in the daemon
constexpr double kLink = 25e9;                           // about PCIe 4 x16

double Seconds(absl::Time at) {
  return absl::ToDoubleSeconds(at - absl::UnixEpoch());
}

// Returns a node of `gpus` GPUs: two behind each switch, `per_root` switches
// behind each root port, one root port per NUMA node. The memory of a NUMA node
// carries `memory` bytes per second in both directions together (0 = no limit).
JobStoryOptions Node(int gpus, int per_root, double memory) {
  JobStoryOptions node;
  std::string root, above;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    const std::string number = std::to_string(gpu);
    if (gpu % (2 * per_root) == 0) {
      root = "root" + number;
      node.links.push_back({"numa" + number, 0, 0, "", memory});
      node.links.push_back({root, 0, 0, "numa" + number});
    }
    if (gpu % 2 == 0) {
      above = "switch" + number;
      node.links.push_back({above, kLink, kLink, root});
    }
    node.gpu_links.push_back(static_cast<int>(node.links.size()));
    node.links.push_back({"gpu" + number, kLink, kLink, above});
  }
  return node;
}

// Measures 8 ranks that copy the same number of bytes in each direction, in
// copies of 64 MiB, with two copies requested ahead. The ranks start 1 ms after
// one another.
std::vector<Entry> EightGpuRows() {
  constexpr double kCopy = 64 << 20;
  constexpr int kCopies = 640;
  const JobStoryOptions of = Node(8, 2, 0);
  const Topology topology = *Topology::Make(of.links);
  NodeSimulation node(topology, kTick);
  std::map<int, int> left;
  std::map<int, double> done;
  const auto on_done = [&](int flow, const NodeSimulation::Copy& copy) {
    done[flow] = Seconds(copy.done);
    if (--left[flow] >= 2) node.Ask(flow, kCopy);
  };
  for (int rank = 0; rank < 8; ++rank) {
    for (int direction : {kH2d, kD2h}) {
      const int flow = 2 * rank + direction;
      node.Open(flow, of.gpu_links[rank], direction);
      node.policy().Promise(flow, 0.45 * kLink);
      left[flow] = kCopies;
      node.Ask(flow, kCopy);
      node.Ask(flow, kCopy);
    }
    node.RunUntil(node.now() + absl::Milliseconds(1), on_done);
  }
  node.RunUntil(node.now() + absl::Seconds(60), on_done);
  double first = 1e9, last = 0;
  for (const auto& [flow, at] : done) {
    first = std::min(first, at);
    last = std::max(last, at);
  }
  double carried = 0;
  for (size_t link = 0; link < of.links.size(); ++link) {
    if (!of.links[link].name.starts_with("switch")) continue;
    for (int direction : {kH2d, kD2h}) {
      carried +=
          node.carried(topology.channel_of(static_cast<int>(link), direction));
    }
  }
  const std::string detail =
      fmt::format("16 flows of {:.0f} GB each, done from {:.3f} to {:.3f} s",
                  kCopies * kCopy / 1e9, first, last);
  return {{"8 GPUs, finish apart", 100 * (last - first) / last, "%", 5, true,
           detail},
          {"8 GPUs, of the links", 100 * carried / (4 * 2 * kLink * last), "%",
           97, false, detail}};
}

JobStoryResult RunJobs(bool promises) {
  JobStoryOptions options = Node(64, 8, 250e9);
  options.jobs = 1000;
  options.mean_gap = absl::Milliseconds(60);
  options.mean_life = absl::Seconds(8);
  options.promises = promises;
  return JobStory(options).Run();
}

std::vector<Entry> JobRows() {
  const JobStoryResult fair = RunJobs(false);
  const JobStoryResult by = RunJobs(true);
  const auto count = [](int64_t n) { return static_cast<double>(n); };
  return {
      {"1,000 jobs, late", count(by.late), "copies", 0, true,
       fmt::format("of {} promised; {} of {} demands admitted, in {:.0f} s",
                   by.due, by.admitted, by.asked,
                   absl::ToDoubleSeconds(by.took))},
      {"1,000 jobs, short", count(by.budgets_short), "budgets", 0, true,
       fmt::format("of {} of flows that always ask for more", by.budgets)},
      {"1,000 jobs, least share", by.least_share, "x", 1, false,
       fmt::format("of the bandwidth that is never promised, of {} plain flows",
                   by.plain)},
      {"1,000 jobs, longest wait", absl::ToDoubleSeconds(by.longest_wait), "s",
       2, true, "of any flow for its next byte; 2 s is the longest period"},
      {"1,000 jobs, fair, late", count(fair.late), "copies", std::nullopt, true,
       fmt::format("of {}, late by up to {:.3f} s, without promises", fair.due,
                   absl::ToDoubleSeconds(fair.latest))},
  };
}

// Measures one refill of a node of 64 GPUs. All 256 slots of the grant page
// copy, half of them with a promise.
std::vector<Entry> CostRows() {
  constexpr int kRefills = 500;
  const JobStoryOptions of = Node(64, 8, 250e9);
  BandwidthPolicy policy(*Topology::Make(of.links));
  absl::Time now = absl::UnixEpoch();
  for (int flow = 0; flow < 2 * kGrantSlots; ++flow) {
    policy.Open(flow, of.gpu_links[flow / 2 % 64], flow % 2);
    if (flow % 4 >= 2) continue;
    policy.Promise(flow, static_cast<double>(MiB(20).count()) / 0.02);
  }
  std::vector<double> costs;
  for (int i = 0; i < kRefills; ++i, now += kTick) {
    for (int flow = 0; flow < 2 * kGrantSlots; ++flow) {
      policy.SetWanted(flow, 1 << 20);
    }
    const auto begin = std::chrono::steady_clock::now();
    policy.Share(now, kTick);
    costs.push_back(std::chrono::duration<double, std::micro>(
                        std::chrono::steady_clock::now() - begin)
                        .count());
  }
  return {{"refill p50", bench::Quantile(costs, 0.5), "us", std::nullopt, true,
           "512 flows on 64 GPUs, all with copies requested; wall clock"}};
}

std::vector<Entry> Measure() {
  std::vector<Entry> all;
  for (const auto& rows : {PlanRows(), EightGpuRows(),
                           bench::EightGpusOnAClock(), JobRows(), CostRows()}) {
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace
}  // namespace sluice::daemon::bandwidth

int main(int argc, char** argv) {
  return sluice::bench::Report(argc, argv, sluice::daemon::bandwidth::Measure);
}
