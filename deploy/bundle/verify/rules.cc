// Asks this machine's driver about every rule that the fake driver assumes. The
// fake driver can read the answers (rules=FILE of tests/fake_cuda/settings.h).
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "deploy/bundle/verify/check.h"
#include "deploy/bundle/verify/rules/probes.h"
#include "proto/base/spawn.h"
#include "proto/base/text.h"

namespace sluice::verify {
namespace {

using fake_cuda::Rule;
using fake_cuda::RuleText;
using nlohmann::json;

constexpr absl::Duration kPatience = absl::Seconds(12);  // limit of one probe

constexpr char kHead[] =
    "# Of ./verify: each rule that tests/fake_cuda assumes, and what a driver\n"
    "# answered to who broke it; `then` is what waiting for the stream gave.\n";

// The probe's line is valid even if its process crashed afterwards.
bool ReadAnswer(const std::string& out, const RuleText& rule, Answer& answer) {
  std::istringstream words(out);
  std::string name;
  if (!(words >> name >> answer.code) || name != rule.name) return false;
  if (int then = 0; words >> then) answer.then = then;
  return true;
}

// Returns what follows "NAME assumed=CODE " in a line of rules.diff.
std::string AskProbe(const RuleText& rule) {
  const auto run = RunProgram({SelfPath(), "--probe", std::string(rule.name)},
                              {.patience = kPatience});
  if (absl::IsDeadlineExceeded(run.status())) return "never-answered";
  if (!run.ok()) {
    return "not-asked: " + std::string(run.status().message());
  }
  std::fputs(run->err.c_str(), stderr);
  Answer answer;
  const bool answered = ReadAnswer(run->out, rule, answer);
  const std::string said =
      answered ? fmt::format("answer={}", answer.code) : "";
  if (answer.then) return fmt::format("{} then={}", said, *answer.then);
  if (run->exit_status > 128) {
    return fmt::format("{}process-ended-by-signal={}",
                       answered ? said + " " : "", run->exit_status - 128);
  }
  if (answered) return said;
  return "not-asked: " + std::string(FirstLine(run->err));
}

}  // namespace

Result RunRules(const Surroundings& here) {
  const std::string expected = "an answer for each rule, whichever it is";
  ShowOnly(
      {here.gpus.begin(), here.gpus.begin() + (here.gpus.size() > 1 ? 2 : 1)});
  std::string diff = kHead, missing, unasked;
  json differs = json::array(), not_asked = json::array();
  for (const RuleText& rule : fake_cuda::kRules) {
    if (rule.known != "assumed") continue;
    const auto index = static_cast<Rule>(&rule - fake_cuda::kRules);
    const auto gpus = GpusFor(index);
    std::string said;
    if (!gpus) {
      missing = std::string(rule.name) + ": there is no probe of it";
      said = "not-asked: no probe";
    } else if (*gpus > static_cast<int>(here.gpus.size())) {
      unasked = fmt::format("{}: it needs {} GPUs", rule.name, *gpus);
      said = fmt::format("not-asked: {} GPUs are needed", *gpus);
    } else {
      said = AskProbe(rule);
      if (said.starts_with("not-asked") && missing.empty()) {
        missing = fmt::format("{}: {}", rule.name, said);
      }
    }
    const std::string line =
        fmt::format("{} assumed={} {}", rule.name, rule.code, said);
    diff += line + "\n";
    const std::string as_assumed = fmt::format("answer={}", rule.code);
    if (said.starts_with("not-asked")) {
      not_asked.push_back(line);
    } else if (said.substr(0, said.find(' ')) != as_assumed) {
      differs.push_back(line);
    }
  }
  std::ofstream(here.work + "/rules.diff") << diff;
  const json value = {
      {"differs", differs}, {"not_asked", not_asked}, {"diff", diff}};
  if (!missing.empty()) return Failed(value, expected, missing);
  return unasked.empty() ? Passed(value, expected) : Skipped(unasked, value);
}

}  // namespace sluice::verify
