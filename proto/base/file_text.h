#pragma once

#include <sstream>
#include <string>

namespace sluice {

// Returns the contents of a file, which may be in /proc, or "" if it cannot be
// read.
std::string TextOf(const std::string& path);

// Returns the text of /proc/PROCESS/stat from the process's state (field 3 of
// proc(5)) onwards, or "" if there is no such process.
std::istringstream ProcessStat(const std::string& process);

}  // namespace sluice
