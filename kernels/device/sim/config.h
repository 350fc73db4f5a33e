// A simulated node's configuration: what of it makes sense, and how it stands
// in the state file.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/device/sim/sim.h"
#include "kernels/device/sim/state.h"

namespace sluice::device {

// InvalidArgument that says of what `message` speaks.
absl::Status BadNode(const std::string& message);

// InvalidArgument names what cannot be, and what can.
absl::Status CheckSimConfig(const SimConfig& config);
absl::Status CheckLinkSpeed(std::string_view link, double bytes_per_second);

// REQUIRES: CheckSimConfig(config) is ok; `state` is all zero.
void WriteConfig(const SimConfig& config, SharedState& state);
// It is a file: nothing of it is an index or a length unchecked. What was
// read may still make no sense.
SimConfig ReadConfig(const SharedState& state);

}  // namespace sluice::device
