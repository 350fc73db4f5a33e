// The administrators' calls: gRPC over the daemon's admin.sock.
//
// Who may open the socket is an administrator; PermissionDenied tells who is
// not. NotFound: no such socket. A daemon that does not answer is
// DeadlineExceeded after 5 s; so long a call waits for the next daemon where
// one has died, and is sent to it again, but for Undrain, ForgetLinks and
// Evict: those are Unavailable where they were sent before, and the outcome is
// unknown. Thread safety: safe.
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

// Whose budget: a user's (in one cgroup, or in all), or a job label's.
struct BudgetTarget {
  std::optional<uint32_t> uid;
  std::string cgroup;
  std::string job;
};

// Unset stays as it is; Bytes(0) is unlimited.
struct BudgetLimits {
  std::optional<Bytes> gpu;
  std::optional<Bytes> host;
};

// The whole snapshot, everybody's, as JSON.
absl::StatusOr<std::string> ReadStatus(const std::string& admin_socket);

// The limits as they are now. The daemon notes this process's user as who set
// them.
absl::StatusOr<BudgetLimits> SetBudget(const std::string& admin_socket,
                                       const BudgetTarget& target,
                                       const BudgetLimits& limits);

// So much of one pool for a user (in one cgroup, or in all); 0: nothing any
// more.
struct Reservation {
  uint32_t uid = 0;
  std::string cgroup;
  std::optional<uint32_t> gpu, numa;  // either
  Bytes bytes;
};
absl::Status Reserve(const std::string& admin_socket,
                     const Reservation& reservation);

// How many ranks are attached still.
absl::StatusOr<uint32_t> Drain(const std::string& admin_socket,
                               const std::string& reason);
absl::Status Undrain(const std::string& admin_socket);

// What links were measured to carry, by name; bytes per second, 0: no limit.
struct MeasuredLink {
  double h2d = 0, d2h = 0, both = 0;
};
// True: the daemon goes by it; else ranks are attached, and it will when none
// is, or is started again.
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
  std::optional<uint32_t> processes;  // killed; absent: an older daemon's word
};
// NotFound: there was neither.
absl::StatusOr<Evicted> Evict(const std::string& admin_socket,
                              const Eviction& eviction);

}  // namespace sluice::ctl
