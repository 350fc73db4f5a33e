// make-trace: writes a generated trace to stdout. See generator.h.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/planner/generator.h"

namespace sluice::planner {
namespace {

int Usage() {
  fmt::print(stderr,
             "error: usage: make-trace list | make-trace NAME [SEED] "
             "[--log]\n");
  return 2;
}

int List() {
  for (const IterationSpec& spec : StandardIterations()) {
    fmt::print("{:<52} {:>6} buffers\n", spec.name,
               GenerateIteration(spec, 1).names.size());
  }
  return 0;
}

int Run(int argc, char** argv) {
  if (argc < 2) return Usage();
  const std::string name = argv[1];
  if (name == "list") return List();
  const IterationSpec* spec = FindIteration(name);
  if (spec == nullptr) {
    fmt::print(stderr, "error: no trace '{}': see make-trace list\n", name);
    return 2;
  }
  uint32_t seed = 1;
  bool log = false;
  for (int k = 2; k < argc; ++k) {
    if (std::strcmp(argv[k], "--log") == 0) {
      log = true;
      continue;
    }
    char* end = nullptr;
    seed = static_cast<uint32_t>(std::strtoul(argv[k], &end, 10));
    if (*end != '\0') return Usage();
  }
  const plan::Trace trace = GenerateIteration(*spec, seed).trace;
  fmt::print("{}", log ? ToRequestLog(trace) : ToCsv(trace));
  return 0;
}

}  // namespace
}  // namespace sluice::planner

int main(int argc, char** argv) { return sluice::planner::Run(argc, argv); }
