// The counted host memory behind HostScope (region_allocator.h).
// Thread safety: thread-safe.
#pragma once

#include <c10/util/Exception.h>

#include "proto/base/units.h"

namespace sluice::runtime::host_memory {

// What is full is not the GPU.
struct OverCap final : c10::OutOfMemoryError {
  using OutOfMemoryError::OutOfMemoryError;
};

// Is this thread inside a HostScope?
bool Active();
// Throws OverCap beyond the cap, naming the scope.
void* Allocate(Bytes size);
// False: not one of ours.
bool Free(void* block);
Bytes Used();
Bytes Peak();
void ResetPeak();

}  // namespace sluice::runtime::host_memory
