// A process by a descriptor, which is never another one's.
//
// Thread safety: safe.
#pragma once

#include <sys/types.h>

#include <string_view>

#include "absl/status/status.h"
#include "proto/base/unique_fd.h"

namespace sluice {

// Readable when the process has ended. None, and errno says why: there is no
// such process (ESRCH), no descriptor is left, or a sandbox or an old kernel
// refuses them.
UniqueFd PidfdOf(pid_t pid);

// Why PidfdOf gave none, by its errno; `what` could not be done therefore.
// PermissionDenied with the remedy: they are refused here.
absl::Status PidfdFault(int error, std::string_view what);

}  // namespace sluice
