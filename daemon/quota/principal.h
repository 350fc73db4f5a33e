// The unit of accounting: a user, or a user within one cgroup.
//
// Usually a user is one principal, because a user that can make cgroups could
// multiply any limit. But where the machine makes the cgroups (Kubernetes pods,
// where every process is often uid 0; Slurm jobs), each cgroup is a principal.
// Values; pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::daemon {

// A principal as the kernel reports it (SO_PEERCRED, /proc/PID/cgroup).
struct Principal {
  uint32_t uid = 0;
  std::string cgroup;  // empty if CgroupCut has no prefix for it
  auto operator<=>(const Principal&) const = default;
};

// Returns "user 1000" or "user 0 (/kubepods/pod7)", for messages.
std::string Name(const Principal& principal);

// Returns whether the user's next processes may get what an ended principal
// leaves: true for a user, and for a Slurm job, because the same user's next
// job may; false for a pod, because many pods often share one user.
bool HasHeir(const Principal& principal);
// Returns whether `to`, another principal, may get what `from` leaves.
bool Inherits(const Principal& from, const Principal& to);

// Cuts a process's cgroup to the part that identifies its principal.
class CgroupCut {
 public:
  // Kubernetes with either cgroup driver, and Slurm.
  static const std::vector<std::string>& Defaults();

  // Each prefix is an absolute path; `*` stands for any text within one name.
  // InvalidArgument names a malformed prefix.
  static absl::StatusOr<CgroupCut> Make(std::vector<std::string> prefixes);
  CgroupCut() = default;  // no prefixes: every cut is empty

  // Returns `cgroup` cut one level below the longest prefix that it matches:
  // with the prefix "/kubepods*", "/kubepods/pod7/c1" gives "/kubepods/pod7".
  // Returns "" if it matches no prefix.
  std::string Of(std::string_view cgroup) const;

 private:
  std::vector<std::vector<std::string>> prefixes_;  // split into names
};

}  // namespace sluice::daemon
