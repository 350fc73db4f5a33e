#include "daemon/arguments.h"

#include "absl/time/clock.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr char kPolicyFolder[] = "/var/lib/sluice";

}  // namespace

absl::StatusOr<Config> ConfigOf(const Arguments& arguments) {
  Config config;
  if (!arguments.config.empty()) {
    SLUICE_ASSIGN_OR_RETURN(config, ReadConfig(arguments.config));
  }
  if (!arguments.driver.empty()) {
    SLUICE_ASSIGN_OR_RETURN(config.driver, ParseDriver(arguments.driver));
  }
  return config;
}

PolicyFile PolicyFileOf(const Config& config, const Arguments& arguments) {
  return PolicyFile(config.policy_folder.value_or(
      arguments.runtime_dir == kRuntimeDir ? kPolicyFolder
                                           : arguments.runtime_dir));
}

Clocks ClocksNow(const Clock& clock) { return {clock.Now(), absl::Now()}; }

}  // namespace sluice::daemon
