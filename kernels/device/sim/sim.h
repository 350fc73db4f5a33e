// A simulated GPU node: a directory that, like hardware, outlives the processes
// that use it, including the daemon. Its state file has the configuration
// below, failures to inject and lost GPUs; only the owner's processes write it.
// Processes of all users write the links' clocks, to share their bandwidth.
//
// Thread safety: SimNode is thread-safe, and safe between processes.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/driver.h"

namespace sluice::device {

struct SimLink {
  std::string name;                 // "pcie0"
  double h2d_bytes_per_second = 0;  // 0 means no limit
  double d2h_bytes_per_second = 0;
};

struct SimGpu {
  Bytes memory;
  std::string link;  // names a SimLink; GPUs may share one
  NumaIndex numa;
};

struct SimConfig {
  std::vector<SimGpu> gpus;
  std::vector<SimLink> links;
  int numa_nodes = 1;
  Bytes host_memory;            // pinnable bytes of all NUMA nodes together
  Bytes granularity = KiB(64);  // of physical allocations
};

// Makes a node in `directory`, which may exist, and replaces a node there that
// no process uses. FailedPrecondition: a process uses the node there. (A
// restarted daemon opens it instead.)
absl::Status CreateSimNode(const std::string& directory,
                           const SimConfig& config);

// Opens a driver for the one process that makes the node's memory (the daemon).
// The driver counts used memory itself, whatever the node's state says. Memory
// that it neither made nor adopted counts as HeldOutside last found it.
absl::StatusOr<std::unique_ptr<Driver>> OpenOwnedSimDriver(
    const std::string& directory);

// Makes the clocks of a node's links: a sealed memfd for all processes that
// share the links. The daemon sends it to each session.
absl::StatusOr<UniqueFd> MakeSimClocks();
// Opens a driver as OpenSimDriver (driver.h) does, with these clocks. A process
// of another user than the node's owner can import memory, but not make any.
absl::StatusOr<std::unique_ptr<Driver>> OpenSimDriver(
    const std::string& directory, const UniqueFd& clocks);

// A process with memory of the node. Memory that two processes hold counts for
// both of them.
struct SimHolder {
  int pid = 0;
  uid_t uid = 0;
  std::string command;  // as the kernel shows it; not trusted
  std::map<Placement, Bytes> held;
};
// Finds the other processes that have memory of the node, except processes that
// this one may not inspect (outside.h). NotFound: no node.
absl::StatusOr<std::vector<SimHolder>> FindSimHolders(
    const std::string& directory);

// Changes a node in use, for tests. PermissionDenied: another user owns it. The
// driver of OpenOwnedSimDriver ignores later failures and lost GPUs.
class SimNode {
 public:
  static absl::StatusOr<std::unique_ptr<SimNode>> Open(
      const std::string& directory);
  virtual ~SimNode() = default;

  virtual SimConfig config() const = 0;
  virtual absl::StatusOr<MemoryUse> Usage(Placement where) = 0;
  // The `nth` call from now (1 = the next) of driver call `name` ("Create", …),
  // in any of the owner's processes, fails with kResourceExhausted. "Copy" is
  // the copy itself, on its stream: the stream's next call returns its failure.
  virtual absl::Status FailCall(std::string_view name, int nth) = 0;
  // Makes every later call that names this GPU fail with kUnavailable.
  virtual absl::Status LoseGpu(DeviceIndex gpu) = 0;
  virtual absl::Status SetLinkSpeed(std::string_view link,
                                    double h2d_bytes_per_second,
                                    double d2h_bytes_per_second) = 0;
};

}  // namespace sluice::device
