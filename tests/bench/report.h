// Prints and writes a benchmark program's results: see tests/bench/README.md.
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

// Parses the arguments, calls `measure` and prints its list. `--json FILE` also
// writes the list there; with `--check FACTOR` a value that misses its target
// by more than FACTOR makes the exit status 1. Returns the
// program's exit status: 2 for a wrong argument or a file that cannot be
// written, which are both reported before anything is measured.
int Report(int argc, char** argv,
           const std::function<std::vector<Entry>()>& measure);

// For `measure`: returns whether --check was given.
bool IsCheck();
// Returns `most`, or at most 3 with --check.
int Rounds(int most);

// Writes the list to `path`. Returns 0, or 2 after an error message.
int WriteJson(const std::string& path, const std::vector<Entry>& entries);

// Returns the q-quantile (0 to 1) of `values`, which must not be empty. Sorts
// `values`.
double Quantile(std::vector<double>& values, double q);

}  // namespace sluice::bench
