// Joins the lines that sluicectl broke to fit a terminal.
#pragma once

#include <string>

#include "absl/strings/str_replace.h"

namespace sluice::testing {

inline std::string WholeLines(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\n  ", " "}});
}

}  // namespace sluice::testing
