// Checks the configuration of a simulated node, and converts it to and from its
// form in the state file.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/device/sim/sim.h"
#include "kernels/device/sim/state.h"

namespace sluice::device {

// Returns an InvalidArgument about the node; `message` states the fault.
absl::Status BadNode(const std::string& message);

// Checks the configuration. InvalidArgument names the impossible value and the
// possible ones.
absl::Status CheckSimConfig(const SimConfig& config);
absl::Status CheckLinkSpeed(std::string_view link, double bytes_per_second);

// Writes the configuration to a new state. REQUIRES: CheckSimConfig(config) is
// ok; `state` is all zero.
void WriteConfig(const SimConfig& config, SharedState& state);
// Reads the configuration. Checks every index and length in the state, because
// the state comes from a file. The configuration may still be inconsistent: see
// CheckSimConfig.
SimConfig ReadConfig(const SharedState& state);

}  // namespace sluice::device
