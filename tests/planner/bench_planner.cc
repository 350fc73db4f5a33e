// bench-planner --json FILE: what the planner can do now, and how fast.
//
// Targets are those the planner is to reach in the end (its README); what is
// missed is shown as missed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "planner/planner.h"
#include "proto/base/status.h"
#include "tests/planner/traces.h"

namespace sluice::planner {
namespace {

class Report {
 public:
  // `better` is "lower" or "higher"; no target: target < 0.
  void Add(const std::string& name, double value, const std::string& unit,
           double target, const std::string& better,
           const std::string& detail) {
    entries_.push_back(fmt::format(
        "  {{\"name\": \"{}\", \"value\": {:.6g}, \"unit\": \"{}\", "
        "\"target\": {}, \"better\": \"{}\", \"detail\": \"{}\"}}",
        name, value, unit, target < 0 ? "null" : fmt::format("{:.6g}", target),
        better, detail));
    fmt::print("{:<34} {:>10.4g} {:<9} {}\n", name, value, unit, detail);
    std::fflush(stdout);
  }
  std::string Json() const {
    return fmt::format("[\n{}\n]\n", fmt::join(entries_, ",\n"));
  }

 private:
  std::vector<std::string> entries_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

plan::Placement Plan(const plan::Trace& trace) {
  auto placement = PlanMemory(trace, {.time_limit = absl::Seconds(10)});
  SLUICE_CHECK_OK(placement.status());
  return *std::move(placement);
}

void MiniMalloc(Report& report) {
  constexpr Bytes kCapacity(1048576);
  double all = 0;
  int fit = 0;
  for (const char letter : std::string("ABCDEFGHIJK")) {
    const plan::Trace trace = ReadCsv(fmt::format("{}.1048576.csv", letter));
    const std::clock_t cpu_start = std::clock();
    const plan::Placement p = Plan(trace);
    const double cpu =
        static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
    all += p.seconds;
    fit += p.peak <= kCapacity;
    report.Add(fmt::format("minimalloc_{}", letter), p.seconds, "s", 10,
               "lower",
               fmt::format("{} buffers: peak {}, bound {}, proved by {}, {}, "
                           "{:.2f} s of CPU time",
                           trace.buffers.size(), p.peak.count(),
                           p.lower_bound.count(), p.proved_by, p.method, cpu));
  }
  report.Add("minimalloc_within_1048576", fit, "of 11", 11, "higher",
             "published capacity kept");
  report.Add("minimalloc_all", all, "s", 20, "lower", "sum of the eleven");
}

void PublicTraces(Report& report) {
  for (const char* name : {"somas_resnet50", "iopddl_G_1"}) {
    const plan::Trace trace = ReadCsv(std::string(name) + ".csv");
    std::vector<double> seconds;
    plan::Placement p;
    for (int k = 0; k < 5; ++k) {
      p = Plan(trace);
      seconds.push_back(p.seconds);
    }
    report.Add(name, Median(seconds), "s", 0.3, "lower",
               fmt::format("{} buffers, {}, median of 5", trace.buffers.size(),
                           p.optimal() ? "proved optimal" : "not proved"));
  }
}

void Layers(Report& report) {
  std::mt19937 random(20);
  std::vector<double> seconds;
  int proved = 0;
  double worst = 0;
  size_t fewest = SIZE_MAX, most = 0;
  for (int k = 0; k < 400; ++k) {
    const plan::Trace trace = LayerTrace(
        random, 2 + static_cast<int>(random() % 20), k % 2 ? 0.5 : 0);
    const plan::Placement p = Plan(trace);
    seconds.push_back(p.seconds * 1e3);
    proved += p.optimal();
    worst = std::max(
        worst, (p.peak - p.lower_bound).in_mib() / p.lower_bound.in_mib());
    fewest = std::min(fewest, trace.buffers.size());
    most = std::max(most, trace.buffers.size());
  }
  report.Add("layers_proved", proved, "of 400", 398, "higher",
             fmt::format("{} to {} buffers, half jittered x0.5 to x1.5, worst "
                         "gap {:.3f} %",
                         fewest, most, worst * 100));
  report.Add("layers_median", Median(seconds), "ms", 20, "lower",
             fmt::format("largest {:.3g} ms",
                         *std::max_element(seconds.begin(), seconds.end())));
}

// 8 ranks of 12 classes over shared links: alpha's LP alone.
void Swap(Report& report) {
  std::mt19937 random(21);
  std::vector<plan::RankProfile> profiles;
  NodeResources resources;
  resources.links.push_back({"switch0", 50e9, 50e9, {}});
  for (uint64_t r = 0; r < 8; ++r) {
    plan::RankProfile p;
    p.rank = Rank(r);
    p.layers = 32;
    p.forward_layer_seconds = 0.9 + 0.01 * static_cast<double>(r);
    p.backward_layer_seconds = 2;
    for (int c = 0; c < 12; ++c) {
      p.classes.push_back(
          {.name = fmt::format("class{}", c),
           .bytes_per_layer = Bytes(int64_t{1} << (26 + random() % 5)),
           .recompute_seconds = 0.01,
           .must_swap = c < 2});
    }
    resources.links[0].ranks.push_back(p.rank);
    resources.links.push_back({fmt::format("pcie{}", r), 25e9, 25e9, {p.rank}});
    profiles.push_back(p);
  }
  resources.host_budget = {GiB(1024)};
  std::vector<double> seconds;
  std::string limit;
  for (int k = 0; k < 9; ++k) {
    const auto start = std::chrono::steady_clock::now();
    const auto plan = PlanNode(profiles, resources, {});
    seconds.push_back(SecondsSince(start) * 1e3);
    SLUICE_CHECK_OK(plan.status());
    limit = fmt::format("alpha {:.4f}, limited by {}", plan->ranks[0].alpha,
                        plan->ranks[0].alpha_limited_by);
  }
  report.Add("alpha_8_ranks_12_classes", Median(seconds), "ms", 50, "lower",
             limit + ", median of 9");
}

}  // namespace
}  // namespace sluice::planner

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--json") != 0) {
    std::fprintf(stderr, "error: usage: bench-planner --json FILE\n");
    return 2;
  }
  sluice::planner::Report report;
  sluice::planner::MiniMalloc(report);
  sluice::planner::PublicTraces(report);
  sluice::planner::Layers(report);
  sluice::planner::Swap(report);
  std::ofstream file(argv[2]);
  file << report.Json();
  file.close();
  if (!file) {
    std::fprintf(stderr, "error: cannot write %s\n", argv[2]);
    return 1;
  }
  return 0;
}
