// Where the source tree and its build lie. One object knows, so that ccache
// finds all others that were compiled in another folder.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

std::string InTree(std::string_view path);   // "tests/golden"
std::string InBuild(std::string_view path);  // "bin/sluiced"

}  // namespace sluice
