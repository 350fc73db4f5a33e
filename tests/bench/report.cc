#include "tests/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace sluice::bench {
namespace {

bool is_check = false;

std::string Json(const std::vector<Entry>& entries) {
  std::string text = "[\n";
  for (const Entry& entry : entries) {
    text += fmt::format(
        "  {{\"name\": \"{}\", \"value\": {}, \"unit\": \"{}\", \"target\": "
        "{}, \"better\": \"{}\", \"detail\": \"{}\"}}{}\n",
        entry.name, entry.value, entry.unit,
        entry.target ? fmt::format("{}", *entry.target) : "null",
        entry.lower_is_better ? "lower" : "higher", entry.detail,
        &entry == &entries.back() ? "" : ",");
  }
  return text + "]\n";
}

bool Misses(const Entry& entry, double factor) {
  if (!entry.target) return false;
  return entry.lower_is_better ? entry.value > *entry.target * factor
                               : entry.value < *entry.target / factor;
}

struct Flags {
  std::string json;  // nothing is written if it is empty
  std::optional<double> check;
};

// Returns nullopt, after an error message, if an argument is wrong.
std::optional<Flags> Parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--json" && *value != '\0') {
      flags.json = value;
      continue;
    }
    char* end = nullptr;
    const double factor = std::strtod(value, &end);
    if (flag != "--check" || *end != '\0' || !(factor > 0)) {
      fmt::print(stderr, "error: '{} {}': give --json FILE, --check FACTOR\n",
                 flag, value);
      return std::nullopt;
    }
    flags.check = factor;
  }
  return flags;
}

}  // namespace

bool IsCheck() { return is_check; }

int Rounds(int most) { return is_check ? std::min(most, 3) : most; }

int WriteJson(const std::string& path, const std::vector<Entry>& entries) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    fmt::print(stderr, "error: cannot write {}\n", path);
    return 2;
  }
  fmt::print(file, "{}", Json(entries));
  std::fclose(file);
  return 0;
}

double Quantile(std::vector<double>& values, double q) {
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(q * last + 0.5)];
}

int Report(int argc, char** argv,
           const std::function<std::vector<Entry>()>& measure) {
  const std::optional<Flags> flags = Parse(argc, argv);
  if (!flags) return 2;
  if (!flags->json.empty() && WriteJson(flags->json, {}) != 0) return 2;
  is_check = flags->check.has_value();
  const std::vector<Entry> entries = measure();
  for (const Entry& entry : entries) {
    fmt::print("{:<24} {:>12.4g} {:<6} {}\n", entry.name, entry.value,
               entry.unit, entry.detail);
  }
  if (!flags->json.empty() && WriteJson(flags->json, entries) != 0) return 2;
  int exit_code = 0;
  for (const Entry& entry : entries) {
    if (!flags->check || !Misses(entry, *flags->check)) continue;
    fmt::print(stderr, "error: {} is {:.4g} {}, target {} times {}\n",
               entry.name, entry.value, entry.unit, *entry.target,
               *flags->check);
    exit_code = 1;
  }
  return exit_code;
}

}  // namespace sluice::bench
