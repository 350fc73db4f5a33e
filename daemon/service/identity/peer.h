// Identifies the peer of a session, from the kernel only.
//
// The identity is SO_PEERCRED (the user that connected) plus a pidfd (which
// never refers to another process). The pidfd comes from SO_PEERPIDFD if the
// kernel has it (6.5), else from pidfd_open of the pid, with a check that no
// other process took the pid in between: the start time is the same before and
// after the call, and the socket was not closed.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "daemon/core/node/types.h"
#include "proto/base/unique_fd.h"
#include "proto/base/user_map.h"

namespace sluice::daemon {

// The user namespace of this process, and the configured cgroups.
struct PeerRules {
  CgroupCut cgroups;
  UserMap users;
};

struct Identity {
  Peer peer;
  UniqueFd pidfd;  // readable once the process is gone
};

// Identifies the peer. PermissionDenied: it is in a pid namespace that this
// process cannot see (pid 0), its user is not mapped here (all such users look
// alike), or it is gone already. ResourceExhausted: this process has no
// descriptors left. `use_peerpidfd` false forces the older way.
//
// A user with user namespaces may have thousands of subordinate users there: a
// peer in one counts as the user that made the outermost of them, unless that
// was root (a container runtime).
absl::StatusOr<Identity> IdentifyPeer(int socket, const PeerRules& rules,
                                      bool use_peerpidfd = true);

// Returns how the process ended, if the kernel reports it (a zombie's stat, or
// PIDFD_GET_INFO once it was reaped, 6.15); else kUnknown. Call after the pidfd
// became readable.
Exit ReadExit(int pidfd, const Peer& peer);

// Returns the cgroup that identifies a principal, from the text of
// /proc/PID/cgroup: the unified path; with only the old hierarchies, the memory
// controller's.
std::string CgroupFrom(std::string_view text);

}  // namespace sluice::daemon
