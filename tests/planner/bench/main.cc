// bench-planner [PART…] [--json FILE]: measures the quality and speed of the
// planner; PART is memory, swap or train (default: all).
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/planner/bench/bench.h"

namespace sluice::planner {

void BenchReport::Add(bench::Entry entry) {
  fmt::print("{:<34} {:>10.4g} {:<9} {}\n", entry.name, entry.value, entry.unit,
             entry.detail);
  std::fflush(stdout);
  entries_.push_back(std::move(entry));
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

namespace {

struct Part {
  std::string_view name;
  void (*run)(BenchReport&);
};
constexpr Part kParts[] = {
    {"memory", BenchMemory}, {"swap", BenchSwap}, {"train", BenchTrain}};

int Run(int argc, char** argv) {
  std::vector<std::string_view> asked;
  std::string json;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--json" && i + 1 < argc) {
      json = argv[++i];
      continue;
    }
    bool known = false;
    for (const Part& part : kParts) known |= part.name == argument;
    if (!known) {
      fmt::print(stderr, "error: '{}': give memory, swap, train, --json FILE\n",
                 argument);
      return 2;
    }
    asked.push_back(argument);
  }
  BenchReport report;
  for (const Part& part : kParts) {
    bool wanted = asked.empty();
    for (const std::string_view name : asked) wanted |= name == part.name;
    if (wanted) part.run(report);
  }
  return json.empty() ? 0 : bench::WriteJson(json, report.entries());
}

}  // namespace
}  // namespace sluice::planner

int main(int argc, char** argv) { return sluice::planner::Run(argc, argv); }
