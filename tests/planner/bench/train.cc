// Compares the cost model with the papers' tables (sluicectl plan validate
// prints every cell).
#include <fmt/format.h>

#include <chrono>

#include "planner/train/search.h"
#include "planner/train/validate.h"
#include "tests/planner/bench/bench.h"

namespace sluice::planner {
namespace {

std::string NameOf(const std::string& method) {
  if (method == "DeepSpeed-Ulysses") return "ulysses";
  if (method == "Megatron-LM") return "megatron";
  return method == "MEMO" ? "memo" : method;
}

void BenchPapers(BenchReport& report) {
  const auto start = std::chrono::steady_clock::now();
  const auto validation = train::ValidateOnPapers();
  if (!validation.ok()) {
    fmt::print("train: {}\n", std::string(validation.status().message()));
    return;
  }
  const double seconds = SecondsSince(start);
  for (const train::MethodSummary& method : validation->methods) {
    report.Add({.name = "train.mfu_difference." + NameOf(method.name),
                .value = method.mean_difference,
                .unit = "points",
                .target = method.must,
                .detail = fmt::format("{} cells, signed {:+.2f}", method.cells,
                                      method.mean_bias)});
  }
  const std::tuple<const char*, double, double> shares[] = {
      {"train.fits_right", validation->fits_right, train::kFitsMust},
      {"train.lengths_within_doubling", validation->lengths_within,
       train::kWithinMust},
      {"train.lengths_exact", validation->lengths_exact, train::kExactMust}};
  for (const auto& [name, value, must] : shares) {
    report.Add({.name = name,
                .value = value,
                .unit = "fraction",
                .target = must,
                .lower_is_better = false});
  }
  report.Add({.name = "train.validate_seconds",
              .value = seconds,
              .unit = "s",
              .detail = "all cells and lengths"});
}

}  // namespace

void BenchTrain(BenchReport& report) { BenchPapers(report); }

}  // namespace sluice::planner
