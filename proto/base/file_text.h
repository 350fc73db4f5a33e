// Whole files, and one of the kernel's.
//
// Thread safety: safe.
#pragma once

#include <sstream>
#include <string>

namespace sluice {

// What is in it, of /proc too; empty where it cannot be read.
std::string TextOf(const std::string& path);

// What /proc/PROCESS/stat says behind the process's name, from its state on,
// which is field 3 of proc(5); "" where there is no such process.
std::istringstream ProcessStat(const std::string& process);

}  // namespace sluice
