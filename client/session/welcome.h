// What the daemon said when the session opened. Internal to client.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/session/session.h"
#include "proto/wire.h"

namespace sluice::client {

struct Welcome {
  bool kept = false;  // its daemon's death does not close the session's socket
  SessionId session;
  NodeLimits limits;
  uint64_t numa_nodes = 0;  // with host memory
  Bytes borrowable;         // of those that are not the GPU's
  std::string sim_directory;
  std::string gpu_uuid;                // of the session's GPU
  device::HostMemoryKind host_memory;  // the daemon's
  int grant_slot = 0;
};

// What leases may have of a GPU's pool at all.
Bytes LeasableOf(const wire::Pool& pool);
void SetGpuPool(const wire::Pool& pool, NodeLimits& limits);

// Checks and translates the reply to a rank's Hello. The wire is checked for
// form already; this is for sense.
absl::StatusOr<Welcome> ReadWelcome(const wire::Message& message,
                                    DeviceIndex gpu);

// The driver the daemon uses too. `message` is what ReadWelcome has read.
absl::StatusOr<std::unique_ptr<device::Driver>> OpenDriver(
    const Welcome& welcome, const wire::Message& message);

// FailedPrecondition: the driver here makes another kind of host memory than
// the daemon's, so no host lease could be mapped. Says what each has and why.
absl::Status CheckHostMemory(const device::Driver& driver,
                             const Welcome& welcome);

// The session's GPU as this process counts them, by its UUID.
absl::StatusOr<DeviceIndex> FindDevice(device::Driver& driver,
                                       const Welcome& welcome);

}  // namespace sluice::client
