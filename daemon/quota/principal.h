// The unit of accounting: a user, and below some cgroups a user in one cgroup.
//
// A user is one principal, however many cgroups its processes are in; otherwise
// a user that can make cgroups could multiply any limit. Where the cgroups are
// the machine's own (the pods of a Kubernetes node, where every process is
// often uid 0; the jobs of a Slurm node) each counts by itself. The
// configuration names the cgroups above them.
//
// Thread safety: values; pure.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::daemon {

// Read from the kernel (SO_PEERCRED, /proc/PID/cgroup), never taken from what a
// client says.
struct Principal {
  uint32_t uid = 0;
  std::string cgroup;  // empty: all processes outside CgroupCut
  auto operator<=>(const Principal&) const = default;
};

// "user 1000", "user 0 (/kubepods/pod7)": for messages.
std::string Name(const Principal& principal);

// Returns whether what a principal leaves may go to the same user's next
// processes: true for a user, and for a job of Slurm, which another principal
// of that user may follow. All pods often share one user, so false for pods.
bool HasHeir(const Principal& principal);
// Returns whether what `from` left may go to `to`.
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
  // with "/kubepods*", "/kubepods/pod7/c1" gives "/kubepods/pod7". Empty if it
  // matches none.
  std::string Of(std::string_view cgroup) const;

 private:
  std::vector<std::vector<std::string>> prefixes_;  // split into names
};

}  // namespace sluice::daemon
