// What `gzip` would write, for tests of readers.
#pragma once

#include <string>

namespace sluice::planner {

std::string Gzipped(const std::string& text);

}  // namespace sluice::planner
