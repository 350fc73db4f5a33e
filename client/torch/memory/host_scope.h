// The counted host memory behind HostScope (region_allocator.h).
// Thread safety: thread-safe.
#pragma once

#include "proto/base/units.h"

namespace sluice::runtime::host_memory {

// Is this thread inside a HostScope?
bool Active();
// Throws c10::OutOfMemoryError beyond the cap, naming the scope.
void* Allocate(Bytes size);
// False: not one of ours.
bool Free(void* block);
Bytes Used();
Bytes Peak();
void ResetPeak();

}  // namespace sluice::runtime::host_memory
