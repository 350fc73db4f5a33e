// What a benchmark program prints and writes: see tests/bench/README.md.
#pragma once

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

// `--json FILE` writes the list there; `--check FACTOR` makes a value that
// misses FACTOR times its target an exit status of 1 (tests use 10).
// Returns the program's exit status: 2 for arguments it does not know.
int Report(int argc, char** argv, const std::vector<Entry>& entries);

// Writes the list to `path`; 0, or 2 with a line when it cannot.
int WriteJson(const std::string& path, const std::vector<Entry>& entries);

// The q-quantile (0 to 1) of `values`, which it sorts; they are not empty.
double Quantile(std::vector<double>& values, double q);

}  // namespace sluice::bench
