// Who is at the other end of a session, from the kernel only.
//
// Identity is SO_PEERCRED (who connected) plus a pidfd (which cannot come to
// mean another process). The pidfd is SO_PEERPIDFD's where the kernel has it
// (6.5), else pidfd_open of the pid, with a check that no other process took
// the pid meanwhile: its start time does not change around the call, and the
// socket was not closed.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "daemon/core/types.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

struct Identity {
  Peer peer;
  UniqueFd pidfd;  // readable once the process is gone
};

// PermissionDenied with the reason where a peer cannot be identified: it is
// in a pid namespace this process cannot see (pid 0), or gone already.
// `use_peerpidfd` false forces the older way.
absl::StatusOr<Identity> IdentifyPeer(int socket, bool use_peerpidfd = true);

// How the process ended, where the kernel tells (a zombie's stat, or
// PIDFD_GET_INFO once it was reaped, 6.15); kUnknown otherwise. Only after
// the pidfd became readable.
Exit ReadExit(int pidfd, const Peer& peer);

// The cgroup that identifies a principal, from the text of /proc/PID/cgroup:
// the unified path; on a machine that has only the old hierarchies, the
// memory controller's.
std::string CgroupFrom(std::string_view text);

}  // namespace sluice::daemon
