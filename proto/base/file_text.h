// Reads whole files, and /proc/PROCESS/stat.
//
// Thread safety: safe.
#pragma once

#include <sstream>
#include <string>

namespace sluice {

// Returns the contents of a file, of /proc too, or "" if it cannot be read.
std::string TextOf(const std::string& path);

// Returns /proc/PROCESS/stat from the process's state on (field 3 of proc(5)),
// or "" if there is no such process.
std::istringstream ProcessStat(const std::string& process);

}  // namespace sluice
