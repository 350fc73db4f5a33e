#include "client/ctl/doctor/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "client/ctl/text/format.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

void Add(std::span<const Check> checks, const Facts& facts,
         std::vector<Finding>& findings) {
  for (const Check& check : checks) {
    findings.push_back(check.look(facts));
    findings.back().what = check.what;
    if (facts.user == "root") {  // root needs no sudo, which may be missing
      absl::StrReplaceAll({{"sudo ", ""}}, &findings.back().fix);
    }
  }
}

const char* Name(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kWarning:
      return "warning";
    case Health::kProblem:
      return "problem";
  }
  return "?";
}

}  // namespace

std::vector<Finding> Examine(const Facts& facts) {
  std::vector<Finding> findings;
  Add(ServiceChecks(), facts, findings);
  Add(MachineChecks(), facts, findings);
  return findings;
}

std::vector<Finding> ExamineMachine(const Facts& facts) {
  std::vector<Finding> findings;
  Add(MachineChecks(), facts, findings);
  return findings;
}

bool IsWell(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& f) {
    return f.health == Health::kProblem;
  });
}

std::string RenderDoctor(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& found : findings) {
    text += fmt::format("{:<8} {:<17} {}\n", Name(found.health), found.what,
                        Printable(found.said));
    if (!found.fix.empty()) text += fmt::format("{:26} $ {}\n", "", found.fix);
  }
  return text;
}

std::string RenderDoctorJson(const std::vector<Finding>& findings) {
  json list = json::array();
  for (const Finding& found : findings) {
    list.push_back(
        {{"what", found.what},
         {"ok", found.health != Health::kProblem},
         {"health", Name(found.health)},
         {"said", found.said},
         {"fix", found.fix.empty() ? json(nullptr) : json(found.fix)}});
  }
  const json all = {{"ok", IsWell(findings)}, {"findings", std::move(list)}};
  return JsonLine(all);
}

}  // namespace sluice::ctl
