// One file of a support bundle.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sluice::ctl {

struct Item {
  std::string name;                  // "status.json"
  std::string what;                  // for people
  absl::StatusOr<std::string> text;  // else why it is left out
};

}  // namespace sluice::ctl
