// Marks allocations that are in host memory if the GPU is real. On sim they do
// not come from the region, and are counted and capped.
//
// Thread safety: a HostScope is its thread's; the counted memory is
// thread-safe.
#pragma once

#include <c10/util/Exception.h>

#include "proto/base/units.h"

namespace sluice::runtime {

// RAII, thread-local, nests. Allocations of this thread come from ordinary host
// memory. They throw host_memory::OverCap if their total would exceed the cap.
class HostScope {
 public:
  explicit HostScope(const char* what);
  ~HostScope();
  HostScope(const HostScope&) = delete;
  // The default is 16 MiB. Bytes(0): no cap.
  static void SetCap(Bytes cap);

 private:
  const char* outer_;
};

// The counted memory, for the allocator.
namespace host_memory {

// Thrown beyond the cap. Not a plain OutOfMemoryError, which means GPU memory.
struct OverCap final : c10::OutOfMemoryError {
  using OutOfMemoryError::OutOfMemoryError;
};

bool Active();
// Throws OverCap beyond the cap, naming the scope.
void* Allocate(Bytes size);
// Returns false if `block` was not allocated here.
bool Free(void* block);
struct Usage {
  Bytes used, peak;
};
Usage Current();
void ResetPeak();

}  // namespace host_memory
}  // namespace sluice::runtime
