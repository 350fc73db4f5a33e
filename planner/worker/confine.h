// Drops the worker's privileges before it reads a request, because its solvers
// process untrusted numbers.
//
// Thread safety: called before there are threads.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace sluice::planner {

struct Confinement {
  // Limit of the address space in bytes; 0: no limit. Has no effect under a
  // sanitizer: its shadow memory is address space too.
  uint64_t memory_bytes = 0;
  // The user and group to change to; all other groups are dropped.
  std::optional<uint32_t> uid, gid;
};

// PermissionDenied: the process may not change to that user (only root may).
absl::Status Confine(const Confinement& to);

// Ends this process when the thread that started it ends, because only that
// reads `out_fd`. Call it after Confine, which would undo it.
void EndWithParent(int out_fd);

}  // namespace sluice::planner
