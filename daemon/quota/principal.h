// The unit that is counted: a user, and below some cgroups a user in one.
//
// A user is one principal, however many cgroups the user's processes are in: a
// user that can make cgroups could else multiply any limit. Where the cgroups
// are the machine's own (the pods of a Kubernetes node, where every process is
// often uid 0; the jobs of a Slurm node) each counts by itself: the
// configuration names what they are below.
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

// Taken from the kernel (SO_PEERCRED, /proc/PID/cgroup), never from what a
// client says.
struct Principal {
  uint32_t uid = 0;
  std::string cgroup;  // empty: all the user's processes outside CgroupCut
  auto operator<=>(const Principal&) const = default;
};

// "user 1000", "user 0 (/kubepods/pod7)": for messages.
std::string Name(const Principal& principal);

// Whether what a principal leaves is for the same user's next processes: true
// for a user, and for a job of Slurm, followed by another principal of that
// user. The user of a pod is often shared by all pods.
bool HasHeir(const Principal& principal);
// What `from` left may go to `to`.
bool Inherits(const Principal& from, const Principal& to);

// Cuts a process' cgroup to the part that belongs to its principal.
class CgroupCut {
 public:
  // Kubernetes by either cgroup driver, Slurm.
  static const std::vector<std::string>& Defaults();

  // Each prefix is an absolute path; `*` stands for any text within one name.
  // InvalidArgument names a prefix that is none.
  static absl::StatusOr<CgroupCut> Make(std::vector<std::string> prefixes);
  CgroupCut() = default;  // no prefixes: every cut is empty

  // Returns `cgroup` cut one level below the longest prefix that it matches:
  // with "/kubepods*", "/kubepods/pod7/c1" gives "/kubepods/pod7". Empty if it
  // matches none.
  std::string Of(std::string_view cgroup) const;

 private:
  std::vector<std::vector<std::string>> prefixes_;  // by name
};

}  // namespace sluice::daemon
