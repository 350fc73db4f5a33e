// What a benchmark program prints and writes: see tests/bench/README.md.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace sluice::bench {

struct Entry {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> target;
  bool lower_is_better = true;
  std::string detail;
};

// Measures, unless an argument is wrong, and prints. `--json FILE` writes the
// list there; `--check FACTOR` makes a value that misses FACTOR times its
// target an exit status of 1 (tests use 10). Returns the program's exit
// status: 2 for an argument that is wrong or a file that cannot be written,
// both told before anything is measured.
int Report(int argc, char** argv,
           const std::function<std::vector<Entry>()>& measure);

// In `measure`: whether --check was given. Its limits are far wider than the
// noise, so Rounds returns at most three with it, else `most`.
bool IsCheck();
int Rounds(int most);

// Writes the list to `path`; 0, or 2 with a line when it cannot.
int WriteJson(const std::string& path, const std::vector<Entry>& entries);

// The q-quantile (0 to 1) of `values`, which it sorts; they are not empty.
double Quantile(std::vector<double>& values, double q);

}  // namespace sluice::bench
