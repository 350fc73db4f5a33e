// What people coming from other trainers ask for and is not there: refused by
// name, with what there is instead.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sluice::train {

// InvalidArgument for the first such flag among `arguments`.
absl::Status RefuseNotYet(const std::vector<std::string>& arguments);

}  // namespace sluice::train
