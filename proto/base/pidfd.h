#pragma once

#include <sys/types.h>

#include <string_view>

#include "absl/status/status.h"
#include "proto/base/unique_fd.h"

namespace sluice {

// Returns a descriptor of a process, which is readable once the process has
// ended and, unlike a pid, never refers to another process. Returns none and
// sets errno if there is no such process (ESRCH), this process has no free
// descriptor, or a sandbox or an old kernel refuses pidfds.
UniqueFd PidfdOf(pid_t pid);

// Returns the errno of PidfdOf as a Status; `what` is the operation that
// failed. PermissionDenied, with the remedy: this system refuses pidfds.
absl::Status PidfdFault(int error, std::string_view what);

}  // namespace sluice
