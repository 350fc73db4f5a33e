// The configuration of a simulated node: its checks, and its form in the state
// file.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/device/sim/sim.h"
#include "kernels/device/sim/state.h"

namespace sluice::device {

// An InvalidArgument about the node; `message` says what is wrong.
absl::Status BadNode(const std::string& message);

// InvalidArgument names the impossible value and the possible ones.
absl::Status CheckSimConfig(const SimConfig& config);
absl::Status CheckLinkSpeed(std::string_view link, double bytes_per_second);

// REQUIRES: CheckSimConfig(config) is ok; `state` is all zero.
void WriteConfig(const SimConfig& config, SharedState& state);
// Checks every index and length in the state, which comes from a file. The
// configuration may still be inconsistent: see CheckSimConfig.
SimConfig ReadConfig(const SharedState& state);

}  // namespace sluice::device
