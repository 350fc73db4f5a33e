// The limits and files of this process.
//
// Thread safety: before there are threads.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::daemon {

// Raises the soft limit of open files to the hard limit: each extent needs a
// descriptor, each session two, and each descriptor that is kept one more.
// Returns the soft limit, which quotas share out; it is also the kernel's limit
// of descriptors in flight.
int64_t RaiseDescriptorLimit();

// Returns the path of this program's file, as it was at the first call. By now
// the file may be that of a later version.
const std::string& ThisProgram();
// Returns the path of the program `name` in the folder of this program.
std::string Sibling(const std::string& name);

}  // namespace sluice::daemon
