#include "client/ctl/doctor/checks.h"

#include "client/ctl/doctor/check.h"

namespace sluice::ctl {

std::vector<Finding> Examine(const Facts& facts) {
  std::vector<Finding> findings;
  for (const auto& checks : {ServiceChecks(), MachineChecks()}) {
    for (const Check& check : checks) {
      findings.push_back(check.look(facts));
      findings.back().what = check.what;
    }
  }
  return findings;
}

}  // namespace sluice::ctl
