// The administrators' calls: gRPC over the daemon's admin.sock.
//
// PermissionDenied: this user may not open the socket. NotFound: no such
// socket. DeadlineExceeded: no answer within 5 s. If a daemon dies, a call
// waits up to 5 s for the next daemon and is sent again. Undrain, ForgetLinks
// and Evict are not sent twice: they return Unavailable, and their outcome is
// unknown. Thread safety: safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/base/units.h"

namespace sluice::ctl {

// Returns the path of admin.sock in the session socket's folder.
std::string AdminSocketOf(const std::string& session_socket);

// Either a user (in one cgroup, or in all if `cgroup` is empty) or a job label.
struct BudgetTarget {
  std::optional<uint32_t> uid;
  std::string cgroup;
  std::string job;
};

// An unset limit stays unchanged; Bytes(0) means unlimited.
struct BudgetLimits {
  std::optional<Bytes> gpu;
  std::optional<Bytes> host;
};

// Returns the snapshot of all users as JSON.
absl::StatusOr<std::string> ReadStatus(const std::string& admin_socket);

// Sets limits and names this user as the one that set them. Returns the limits.
absl::StatusOr<BudgetLimits> SetBudget(const std::string& admin_socket,
                                       const BudgetTarget& target,
                                       const BudgetLimits& limits);

// Memory of one pool for a user (in one cgroup, or in all if `cgroup` is
// empty). Bytes(0) ends the reservation.
struct Reservation {
  uint32_t uid = 0;
  std::string cgroup;
  std::optional<uint32_t> gpu, numa;  // exactly one is set
  Bytes bytes;
};
absl::Status Reserve(const std::string& admin_socket,
                     const Reservation& reservation);

// Refuses new ranks and leases. Returns how many ranks are still attached.
absl::StatusOr<uint32_t> Drain(const std::string& admin_socket,
                               const std::string& reason);
absl::Status Undrain(const std::string& admin_socket);

// The limits of a link in bytes per second. 0: no limit.
struct LinkLimits {
  double h2d = 0;
  double d2h = 0;
  double both = 0;  // of both directions together
  bool any() const { return h2d > 0 || d2h > 0 || both > 0; }
};
// Stores measured limits by the links' names. Returns whether the daemon uses
// them now; if not, it uses them when no rank is attached or after a restart.
absl::StatusOr<bool> KeepLinks(const std::string& admin_socket,
                               const std::map<std::string, LinkLimits>& links);
absl::StatusOr<bool> ForgetLinks(const std::string& admin_socket);

struct Eviction {
  std::string job;
  std::optional<uint32_t> uid;
  bool kill = false;
  std::string reason;
};

struct Evicted {
  uint32_t sessions = 0;  // number of ended sessions
  // Number of killed processes; unset by an older daemon.
  std::optional<uint32_t> processes;
};
// Ends a job's sessions. NotFound: the job had no session and no process.
absl::StatusOr<Evicted> Evict(const std::string& admin_socket,
                              const Eviction& eviction);

}  // namespace sluice::ctl
