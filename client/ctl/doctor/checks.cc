#include "client/ctl/doctor/checks.h"

#include "absl/strings/str_replace.h"
#include "client/ctl/doctor/check.h"

namespace sluice::ctl {

namespace {

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

}  // namespace sluice::ctl
