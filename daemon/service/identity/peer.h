// Identifies the peer of a session, by the kernel's data only.
//
// The identity is SO_PEERCRED plus a pidfd, which never refers to another
// process: from SO_PEERPIDFD if the kernel has it (Linux 6.5), else from
// pidfd_open of the pid. Around that call, the process's start time must not
// change, and the socket must stay open: then the pid was not reused.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/node/types.h"
#include "proto/base/unique_fd.h"
#include "proto/base/user_map.h"

namespace sluice::daemon {

struct PeerRules {
  CgroupCut cgroups;
  UserMap users;
};

struct Identity {
  Peer peer;
  UniqueFd pidfd;  // readable once the process is gone
};

// PermissionDenied: the peer is in a pid namespace that this process cannot see
// (pid 0), its user is not mapped here (all such users look alike), or it has
// ended already. ResourceExhausted: no descriptors are left. If `use_peerpidfd`
// is false, uses pidfd_open.
//
// A user may have thousands of subordinate users in user namespaces. So a peer
// in a user namespace counts as the user that made the outermost one, unless
// that was root (a container runtime).
absl::StatusOr<Identity> IdentifyPeer(int socket, const PeerRules& rules,
                                      bool use_peerpidfd = true);

// Returns how the process ended, if the kernel reports it: in a zombie's stat,
// or, once it was reaped, with PIDFD_GET_INFO (Linux 6.15); else kUnknown. Call
// after the pidfd became readable.
Exit ReadExit(int pidfd, const Peer& peer);

// Returns the cgroup that identifies a principal, from the text of
// /proc/PID/cgroup: the path in the unified hierarchy, or, if there are only
// the old hierarchies, the path of the memory controller.
std::string CgroupFrom(const std::string& text);

}  // namespace sluice::daemon
