// What a program of the daemon's family does about itself.
//
// Thread safety: before there are threads.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::daemon {

// Every extent is a descriptor, every session two, and all that is kept one.
// Returns the soft limit: quotas share it out, and the kernel lets so many be
// on their way.
int64_t RaiseDescriptorLimit();

// The file of this program, as it was called when that was asked first: a later
// version may have taken its place.
const std::string& ThisProgram();
// The program of that name beside this one.
std::string Sibling(const std::string& name);

}  // namespace sluice::daemon
