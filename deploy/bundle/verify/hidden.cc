#include "deploy/bundle/verify/hidden.h"

#include <map>

#include "absl/strings/numbers.h"
#include "deploy/bundle/verify/check.h"
#include "deploy/bundle/verify/check_process.h"
#include "deploy/bundle/verify/rules/probes.h"
#include "deploy/bundle/verify/tenant.h"

namespace sluice::verify {
namespace {

// Runs a check. `arguments`: flags and values in turn, as RunInProcess passes
// them.
int BeACheck(const std::vector<std::string>& arguments) {
  std::map<std::string, std::string> given;
  for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
    given[arguments[i]] = arguments[i + 1];
  }
  const Check* const check = FindCheck(given["--check"]);
  int64_t limit = 0;
  if (check == nullptr || !absl::SimpleAtoi(given["--limit"], &limit)) return 2;
  return ServeCheck(*check, given["--work"], given["--gpus"],
                    {.work = {},
                     .gpus = {},
                     .busy = given["--busy"],
                     .python = given["--python"],
                     .limit = absl::Seconds(limit)});
}

}  // namespace

std::optional<int> RunHidden(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return std::nullopt;
  if (arguments[0] == "--check") return BeACheck(arguments);
  if (arguments[0] == "--probe" && arguments.size() == 2) {
    return AskRule(arguments[1]);
  }
  if (arguments[0] == kBeATenant) {
    return BeATenant({arguments.begin() + 1, arguments.end()});
  }
  return std::nullopt;
}

}  // namespace sluice::verify
