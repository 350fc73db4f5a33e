// A program's own limits and files.
//
// Thread safety: before there are threads.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::daemon {

// Raises the limit: every extent is a descriptor, every session two, and all
// that is kept one. Returns the soft limit, which quotas share out, and which
// is the kernel's limit of descriptors on their way.
int64_t RaiseDescriptorLimit();

// The file of this program, as it was called at the first call: a later version
// may have taken its place.
const std::string& ThisProgram();
// The program of that name beside this one.
std::string Sibling(const std::string& name);

}  // namespace sluice::daemon
