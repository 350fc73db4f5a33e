// Reads what the daemon sends: its answer to Hello, and plans. Internal to
// client.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/session/session.h"
#include "proto/wire.h"

namespace sluice::client {

struct Welcome {
  bool kept = false;  // whether the socket stays open when the daemon dies
  NodeLimits limits;
  uint64_t numa_nodes = 0;  // number of NUMA nodes with host memory
  Bytes borrowable;  // free host memory of NUMA nodes other than the GPU's
  std::string sim_directory;
  std::string gpu_uuid;                // of the session's GPU
  device::HostMemoryKind host_memory;  // kind of the daemon's host memory
  int grant_slot = 0;
};

// Returns the bytes of a GPU's pool that leases may have in total.
Bytes LeasableOf(const wire::Pool& pool);
void SetGpuPool(const wire::Pool& pool, NodeLimits& limits);

// Checks the meaning of the reply to a rank's Hello; the wire layer has checked
// its form.
absl::StatusOr<Welcome> ReadWelcome(const wire::Message& message,
                                    DeviceIndex gpu);

// Opens the driver that the daemon uses. `message` was ReadWelcome's argument.
absl::StatusOr<std::unique_ptr<device::Driver>> OpenDriver(
    const Welcome& welcome, const wire::Message& message);

// FailedPrecondition: the driver here makes another kind of host memory than
// the daemon's, so this process could map no host lease.
absl::Status CheckHostMemory(const device::Driver& driver,
                             const Welcome& welcome);

// Finds the session's GPU by its UUID and returns its number in this process.
absl::StatusOr<DeviceIndex> FindDevice(device::Driver& driver,
                                       const Welcome& welcome);

absl::StatusOr<plan::NodePlan> ReadPlan(const UniqueFd& memfd);

}  // namespace sluice::client
