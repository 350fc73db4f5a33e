// What on a GPU would be host memory, on sim: exempt from the region, counted
// and capped.
//
// Thread safety: a HostScope is its thread's; the counted memory is
// thread-safe.
#pragma once

#include <c10/util/Exception.h>

#include "proto/base/units.h"

namespace sluice::runtime {

// RAII, thread-local, nests: allocations of this thread come from ordinary
// host memory, counted. While training they are capped at 16 MiB in all;
// beyond it host_memory::OverCap names the scope.
class HostScope {
 public:
  explicit HostScope(const char* what);
  ~HostScope();
  HostScope(const HostScope&) = delete;
  // 16 MiB unless set; Bytes(0): no cap (check's reference).
  static void SetCap(Bytes cap);

 private:
  const char* outer_;
};

// The counted memory behind it, for the allocator.
namespace host_memory {

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

}  // namespace host_memory
}  // namespace sluice::runtime
