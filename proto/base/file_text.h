// A whole file.
//
// Thread safety: safe.
#pragma once

#include <string>

namespace sluice {

// What is in it, of /proc too; empty where it cannot be read.
std::string TextOf(const std::string& path);

}  // namespace sluice
