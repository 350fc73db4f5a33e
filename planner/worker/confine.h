// What the worker gives up before it reads a request: a stranger's numbers go
// through its solvers.
//
// Thread safety: called before there are threads.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace sluice::planner {

struct Confinement {
  // Address space, in bytes; 0: no limit. Has no effect under a sanitizer: its
  // shadow memory is address space too.
  uint64_t memory_bytes = 0;
  // The user and group that it becomes, without any other group.
  std::optional<uint32_t> uid, gid;
};

// PermissionDenied: it may not become that user (only root may).
absl::Status Confine(const Confinement& to);

// Ends this process with the thread that started it, which alone reads
// `out_fd`. Call it after Confine, which would undo it.
void EndWithParent(int out_fd);

}  // namespace sluice::planner
