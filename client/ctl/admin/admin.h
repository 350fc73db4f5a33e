// The administrators' calls: gRPC over the daemon's admin.sock.
//
// A user that may open the socket is an administrator; others get
// PermissionDenied. NotFound: no such socket. DeadlineExceeded: the daemon did
// not answer within 5 s. If a daemon dies, a call waits as long for the next
// one and is sent to it again, except Undrain, ForgetLinks and Evict: once
// sent, they return Unavailable, and their outcome is unknown. Thread safety:
// safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/base/units.h"

namespace sluice::ctl {

// admin.sock beside the session socket.
std::string AdminSocketOf(const std::string& session_socket);

// The owner of a budget: a user (in one cgroup, or in all), or a job label.
struct BudgetTarget {
  std::optional<uint32_t> uid;
  std::string cgroup;
  std::string job;
};

// An unset limit does not change; Bytes(0) is unlimited.
struct BudgetLimits {
  std::optional<Bytes> gpu;
  std::optional<Bytes> host;
};

// Returns the snapshot of all users as JSON.
absl::StatusOr<std::string> ReadStatus(const std::string& admin_socket);

// Returns the new limits. The daemon records that this process's user set them.
absl::StatusOr<BudgetLimits> SetBudget(const std::string& admin_socket,
                                       const BudgetTarget& target,
                                       const BudgetLimits& limits);

// Memory of one pool for a user (in one cgroup, or in all); 0 ends it.
struct Reservation {
  uint32_t uid = 0;
  std::string cgroup;
  std::optional<uint32_t> gpu, numa;  // one of them
  Bytes bytes;
};
absl::Status Reserve(const std::string& admin_socket,
                     const Reservation& reservation);

// Returns how many ranks are still attached.
absl::StatusOr<uint32_t> Drain(const std::string& admin_socket,
                               const std::string& reason);
absl::Status Undrain(const std::string& admin_socket);

// The measured speed of a link in bytes per second, by name. 0: no limit.
struct MeasuredLink {
  double h2d = 0, d2h = 0, both = 0;
};
// Returns whether the daemon uses the speeds now. If not, ranks are attached,
// and it will use them when none is, or when it is started again.
absl::StatusOr<bool> KeepLinks(
    const std::string& admin_socket,
    const std::map<std::string, MeasuredLink>& links);
absl::StatusOr<bool> ForgetLinks(const std::string& admin_socket);

struct Eviction {
  std::string job;
  std::optional<uint32_t> uid;
  bool kill = false;
  std::string reason;
};

struct Evicted {
  uint32_t sessions = 0;              // ended
  std::optional<uint32_t> processes;  // killed; unset by an older daemon
};
// NotFound: the job had no session and no process.
absl::StatusOr<Evicted> Evict(const std::string& admin_socket,
                              const Eviction& eviction);

}  // namespace sluice::ctl
