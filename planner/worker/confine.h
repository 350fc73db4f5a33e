// What the worker gives up before it reads a request: a stranger's numbers go
// through its solvers.
//
// Thread safety: called before there are threads.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace sluice::planner {

// Every solver of a step's plan stays far below it.
inline constexpr uint64_t kDefaultMemoryBytes = uint64_t{4} << 30;

// At most `memory_bytes` of address space from now on (0: any; not under a
// sanitizer, whose shadow memory is address space too), and no program that
// it starts gains a privilege. PermissionDenied: the kernel refuses.
absl::Status Confine(uint64_t memory_bytes);

// Ends with the thread that started this process: nobody is left to read what
// it writes to `out_fd`.
void EndWithParent(int out_fd);

}  // namespace sluice::planner
