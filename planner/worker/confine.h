// Drops the worker's privileges before it reads a request, because its solvers
// process untrusted numbers.
//
// Thread safety: call it before other threads start.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace sluice::planner {

struct Confinement {
  // Limit of the address space in bytes; 0: no limit. Has no effect under a
  // sanitizer: its shadow memory is address space too.
  uint64_t memory_bytes = 0;
  // The user and group to change to. All other groups are dropped.
  std::optional<uint32_t> uid, gid;
};

// Limits memory and priority, and drops groups, user, capabilities and the
// right to gain privileges. PermissionDenied: a step failed, for example
// because only root may change the user.
absl::Status Confine(const Confinement& to);

// Kills this process when the thread that started it ends, because only that
// thread reads `out_fd`. Call it after Confine: changing the user would cancel
// it.
void EndWithParent(int out_fd);

}  // namespace sluice::planner
