// A process by a descriptor, which is never another one's.
//
// Thread safety: safe.
#pragma once

#include <sys/types.h>

#include "proto/base/unique_fd.h"

namespace sluice {

// Readable when the process has ended. None, and errno says why: there is no
// such process (ESRCH), or no descriptor is left.
UniqueFd PidfdOf(pid_t pid);

}  // namespace sluice
