#include "client/session/welcome.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/device/sim/sim.h"
#include "proto/base/grant_page.h"
#include "proto/base/simulated.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"

namespace sluice::client {
namespace {

Bytes ToBytes(uint64_t count) { return Bytes(static_cast<int64_t>(count)); }

absl::Status Unusable(const std::string& what) {
  return absl::FailedPreconditionError(fmt::format(
      "sluiced answered {}: install the same version of sluiced and libsluice",
      what));
}

// Formats "memfd (the driver offers no HOST_NUMA memory)".
std::string Describe(const device::HostMemoryKind& kind) {
  return kind.why.empty() ? kind.name
                          : fmt::format("{} ({})", kind.name, kind.why);
}

}  // namespace

Bytes LeasableOf(const wire::Pool& pool) {
  return std::max(
      ToBytes(pool.total_bytes()) - ToBytes(pool.held_outside_bytes()),
      Bytes(0));
}

void SetGpuPool(const wire::Pool& pool, NodeLimits& limits) {
  limits.gpu_total = LeasableOf(pool);
  limits.gpu_free = ToBytes(pool.free_bytes());
  limits.gpu_leased = ToBytes(pool.leased_bytes());
}

absl::StatusOr<Welcome> ReadWelcome(const wire::Message& message,
                                    DeviceIndex gpu) {
  const wire::Reply& reply = message.packet.reply();
  if (!reply.has_welcome()) return Unusable("without a welcome");
  const wire::Welcome& in = reply.welcome();
  if (in.protocol() < wire::kProtocols.oldest ||
      in.protocol() > wire::kProtocols.newest) {
    return Unusable(fmt::format("in protocol {}", in.protocol()));
  }
  // A third descriptor carries the clocks of simulated links.
  if (message.fds.size() < 2 || message.fds.size() > 3) {
    return Unusable("without grant pages");
  }
  if (in.grant_slot() >= kGrantSlots || in.granularity() == 0) {
    return Unusable(fmt::format("with grant slot {} and granularity {}",
                                in.grant_slot(), in.granularity()));
  }
  Welcome out;
  out.kept = in.kept();
  out.sim_directory = in.sim_directory();
  out.host_memory = {.name = in.host_memory(), .why = in.host_memory_why()};
  out.grant_slot = static_cast<int>(in.grant_slot());
  NodeLimits& limits = out.limits;
  limits.driver = in.driver();
  limits.granularity = ToBytes(in.granularity());
  limits.h2d_bytes_per_second = in.link_h2d_bytes_per_second();
  limits.d2h_bytes_per_second = in.link_d2h_bytes_per_second();
  for (const wire::Gpu& candidate : in.gpus()) {
    if (candidate.index() != gpu.value()) continue;
    out.gpu_uuid = candidate.uuid();
    limits.numa = NumaIndex(candidate.numa());
    SetGpuPool(candidate.pool(), limits);
  }
  if (out.gpu_uuid.empty()) {
    return Unusable(fmt::format("without GPU {}", gpu.value()));
  }
  for (const wire::Pool& pool : in.host_pools()) {
    if (out.numa_nodes++ == limits.numa.value()) {
      limits.host_total = ToBytes(pool.total_bytes());
      limits.host_free = ToBytes(pool.free_bytes());
    } else {
      out.borrowable += ToBytes(pool.free_bytes());
    }
  }
  return out;
}

absl::StatusOr<std::unique_ptr<device::Driver>> OpenDriver(
    const Welcome& welcome, const wire::Message& message) {
  if (IsSimulated(welcome.limits.driver)) {
    return message.fds.size() > 2
               ? device::OpenSimDriver(welcome.sim_directory, message.fds[2])
               : device::OpenSimDriver(welcome.sim_directory);
  }
  if (welcome.limits.driver == "cuda") {
    return device::OpenCudaDriver(welcome.host_memory.name == "memfd"
                                      ? device::HostMemoryChoice::kMemfd
                                      : device::HostMemoryChoice::kAuto);
  }
  return Unusable(fmt::format("with driver '{}'", welcome.limits.driver));
}

absl::Status CheckHostMemory(const device::Driver& driver,
                             const Welcome& welcome) {
  const device::HostMemoryKind here = driver.HostMemory();
  const device::HostMemoryKind& daemon = welcome.host_memory;
  // A daemon of an earlier version does not state its kind.
  if (daemon.name.empty() || daemon.name == here.name) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "sluiced has host memory of kind {}, and this process could map only {}: "
      "let both see the same GPUs and driver library, in containers with the "
      "same seccomp profile and capabilities",
      Describe(daemon), Describe(here)));
}

absl::StatusOr<DeviceIndex> FindDevice(device::Driver& driver,
                                       const Welcome& welcome) {
  SLUICE_ASSIGN_OR_RETURN(const auto devices, driver.Devices());
  std::string seen;
  for (const device::DeviceInfo& info : devices) {
    if (info.uuid == welcome.gpu_uuid) return info.index;
    seen += (seen.empty() ? "" : ", ") +
            (info.fault.empty() ? info.uuid : info.fault);
  }
  return absl::FailedPreconditionError(fmt::format(
      "{0} is not visible in this process, which sees {1} GPUs ({2}): export "
      "CUDA_VISIBLE_DEVICES={0}",
      welcome.gpu_uuid, devices.size(), seen));
}

absl::StatusOr<plan::NodePlan> ReadPlan(const UniqueFd& memfd) {
  SLUICE_ASSIGN_OR_RETURN(const std::string bytes, wire::FromMemfd(memfd));
  return plan::DecodeNodePlan(bytes);
}

}  // namespace sluice::client
