// The checks that run test programs on each GPU.
#include <fmt/format.h>

#include "absl/time/clock.h"
#include "deploy/bundle/verify/check.h"
#include "proto/base/file_text.h"
#include "proto/base/spawn.h"

namespace sluice::verify {
namespace {

using nlohmann::json;

struct Suite {
  const char* program;
  const char* filter;
};

std::string GroupName(const std::vector<int>& gpus) {
  return fmt::format("{}", fmt::join(gpus, "-"));
}

// Returns on one line the first failure's message, or why a test was skipped.
std::string FirstWord(const json& test) {
  for (const char* kind : {"failures", "skipped"}) {
    if (!test.contains(kind) || test[kind].empty()) continue;
    std::string text = test[kind][0].value(
        kind == std::string("failures") ? "failure" : "message", "");
    if (const size_t line = text.find("\n"); line != std::string::npos) {
      text = text.substr(line + 1);  // skips the line with the file's name
    }
    for (char& c : text) c = c == '\n' ? ' ' : c;
    return text.substr(0, 300);
  }
  return "";
}

struct Outcome {
  int passed = 0;
  json failed = json::array(), skipped = json::array();
  std::string
      reason;  // of the first failed test, else of the first skipped one
};

Outcome ReadOutcome(const std::string& report) {
  Outcome outcome;
  const json all = json::parse(TextOf(report), nullptr, false);
  if (!all.is_object()) return outcome;
  for (const json& suite : all.value("testsuites", json::array())) {
    for (const json& test : suite.value("testsuite", json::array())) {
      const std::string name = test.value("name", "");
      const bool bad = test.contains("failures");
      if (bad) {
        if (outcome.failed.empty()) {
          outcome.reason = name + ": " + FirstWord(test);
        }
        outcome.failed.push_back(name);
      } else if (test.value("result", "") == "SKIPPED") {
        if (outcome.reason.empty()) {
          outcome.reason = name + ": " + FirstWord(test);
        }
        outcome.skipped.push_back(name);
      } else {
        ++outcome.passed;
      }
    }
  }
  return outcome;
}

Result RunOn(const Suite& suite, const std::vector<int>& gpus,
             const Surroundings& here, absl::Duration patience) {
  const std::string group = GroupName(gpus);
  const std::string report = here.work + "/gpu" + group + ".json";
  const std::string expected = "every test passes";
  ShowOnly(gpus);
  const auto run = RunProgram(
      {Beside(suite.program), fmt::format("--gtest_filter={}", suite.filter),
       "--gtest_output=json:" + report},
      {.patience = absl::Floor(patience, absl::Milliseconds(100))});
  if (!run.ok()) return Failed({}, expected, run.status());
  std::fputs(run->out.c_str(), stdout);
  std::fputs(run->err.c_str(), stderr);
  const Outcome outcome = ReadOutcome(report);
  const json value = {{"passed", outcome.passed},
                      {"failed", outcome.failed},
                      {"skipped", outcome.skipped}};
  const std::string where = "GPU " + group + ": ";
  if (!outcome.failed.empty()) {
    return Failed(value, expected, where + outcome.reason);
  }
  if (run->exit_status != 0) {
    return Failed(
        value, expected,
        fmt::format("{}{} ended with status {}; it said last: {}", where,
                    suite.program, run->exit_status, LastLine(run->err)));
  }
  if (!outcome.skipped.empty()) return Skipped(where + outcome.reason, value);
  if (outcome.passed == 0) {
    return Failed(value, expected,
                  where + "nothing of " + suite.program + " ran");
  }
  return Passed(value, expected);
}

// Runs the suite once per group of GPUs. If no time is left for a group, the
// check does not pass.
Result RunSuite(const Suite& suite, const std::vector<std::vector<int>>& groups,
                const Surroundings& here) {
  const absl::Time end = absl::Now() + here.limit * 0.9;
  Result whole = Passed(json::object(), "every test passes on every GPU");
  for (const std::vector<int>& group : groups) {
    const absl::Duration left = end - absl::Now();
    Result one =
        left > here.limit * 0.1
            ? RunOn(suite, group, here, left)
            : Skipped("GPU " + GroupName(group) + ": no time was left");
    whole.value["gpu" + GroupName(group)] = one.value;
    const bool worse =
        one.status != Status::kPassed && whole.status != Status::kFailed &&
        (one.status == Status::kFailed || whole.status == Status::kPassed);
    if (worse) {
      whole.status = one.status;
      whole.reason = one.reason;
    }
  }
  return whole;
}

}  // namespace

// Tests each GPU alone, then the pairs of neighbours in a ring, so that each
// GPU is the first of one pair and the second of another.
Result RunConformance(const Surroundings& here) {
  std::vector<std::vector<int>> groups;
  for (const int gpu : here.gpus) groups.push_back({gpu});
  const size_t count = here.gpus.size();
  for (size_t i = 0; count > 1 && i < count; ++i) {
    groups.push_back({here.gpus[i], here.gpus[(i + 1) % count]});
  }
  return RunSuite({"conformance_test", "*/cuda"}, groups, here);
}

Result RunKernels(const Surroundings& here) {
  std::vector<std::vector<int>> groups;
  for (const int gpu : here.gpus) groups.push_back({gpu});
  return RunSuite({"merge_kernel_test", "*OnGpu.*"}, groups, here);
}

}  // namespace sluice::verify
