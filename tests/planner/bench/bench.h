// Parts of bench-planner: one function and one file per part.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/bench/report.h"

namespace sluice::planner {

// Prints an entry as soon as it is measured, and keeps it for --json.
class BenchReport {
 public:
  void Add(bench::Entry entry);
  const std::vector<bench::Entry>& entries() const { return entries_; }

 private:
  std::vector<bench::Entry> entries_;
};

void BenchMemory(BenchReport& report);  // memory.cc
void BenchSwap(BenchReport& report);    // swap.cc
void BenchTrain(BenchReport& report);   // train.cc

double SecondsSince(std::chrono::steady_clock::time_point start);

}  // namespace sluice::planner
