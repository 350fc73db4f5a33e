// The daemon's answer to Hello. Internal to client.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/session/session.h"
#include "proto/wire.h"

namespace sluice::client {

struct Welcome {
  bool kept = false;  // the daemon's death does not close the socket
  SessionId session;
  NodeLimits limits;
  uint64_t numa_nodes = 0;  // with host memory
  Bytes borrowable;         // of those that are not the GPU's
  std::string sim_directory;
  std::string gpu_uuid;                // of the session's GPU
  device::HostMemoryKind host_memory;  // the daemon's
  int grant_slot = 0;
};

// The most that leases may have of a GPU's pool.
Bytes LeasableOf(const wire::Pool& pool);
void SetGpuPool(const wire::Pool& pool, NodeLimits& limits);

// Checks and translates the reply to a rank's Hello. The wire layer has checked
// its form; this checks its meaning.
absl::StatusOr<Welcome> ReadWelcome(const wire::Message& message,
                                    DeviceIndex gpu);

// Opens the driver that the daemon uses. `message` is the one that ReadWelcome
// read.
absl::StatusOr<std::unique_ptr<device::Driver>> OpenDriver(
    const Welcome& welcome, const wire::Message& message);

// FailedPrecondition: the driver here makes another kind of host memory than
// the daemon's, so no host lease could be mapped. The message has both kinds
// and the reasons.
absl::Status CheckHostMemory(const device::Driver& driver,
                             const Welcome& welcome);

// Returns the session's GPU by this process's numbering; found by its UUID.
absl::StatusOr<DeviceIndex> FindDevice(device::Driver& driver,
                                       const Welcome& welcome);

}  // namespace sluice::client
