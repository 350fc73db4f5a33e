// Opens a descriptor of a process. Unlike a pid, it never refers to another
// process later.
//
// Thread safety: safe.
#pragma once

#include <sys/types.h>

#include <string_view>

#include "absl/status/status.h"
#include "proto/base/unique_fd.h"

namespace sluice {

// Returns a descriptor that is readable once the process has ended. Returns
// none and sets errno if there is no such process (ESRCH), this process has no
// free descriptor, or a sandbox or an old kernel refuses pidfds.
UniqueFd PidfdOf(pid_t pid);

// Converts the errno of PidfdOf to a Status; `what` is the operation that
// failed because of it. PermissionDenied, with the remedy, if this system
// refuses pidfds.
absl::Status PidfdFault(int error, std::string_view what);

}  // namespace sluice
