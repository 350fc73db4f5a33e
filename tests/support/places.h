// The locations of the source tree and its build. Only one object file contains
// them, so that ccache can reuse all others from another folder.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

std::string InTree(std::string_view path);   // "tests/golden"
std::string InBuild(std::string_view path);  // "bin/sluiced"

}  // namespace sluice
