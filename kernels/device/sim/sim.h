// A simulated GPU node: a directory with shared state.
//
// Like hardware, the directory outlives the processes that use it, the daemon
// included. It has one mapped state file, which its owner writes and others
// read: the configuration below, failures to inject, lost GPUs. Processes of
// all users write only the clocks of the links, so that processes on one link
// share its bandwidth.
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
  double h2d_bytes_per_second = 0;  // 0: not limited
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

// Makes the node's directory and state file. The directory may exist if it is
// empty or has a node that no process uses; this node is replaced.
// FailedPrecondition: a process uses the node. (A restarted daemon opens the
// node instead.)
absl::Status CreateSimNode(const std::string& directory,
                           const SimConfig& config);

// Opens a driver for the one process that makes the node's memory (the daemon).
// It counts used memory itself, so its answers do not depend on what other
// processes write to the node's state. Memory that it did not make counts as
// HeldOutside last found it.
absl::StatusOr<std::unique_ptr<Driver>> OpenOwnedSimDriver(
    const std::string& directory);

// Makes the clocks of a node's links: a sealed memfd for all processes that
// share the links. The daemon sends it to each session.
absl::StatusOr<UniqueFd> MakeSimClocks();
// Opens a driver as OpenSimDriver (driver.h) does, with these clocks. A process
// of another user than the node's owner can import memory, but not make any.
absl::StatusOr<std::unique_ptr<Driver>> OpenSimDriver(
    const std::string& directory, const UniqueFd& clocks);

// A process that has memory of a node. Memory that two processes have counts
// for both.
struct SimHolder {
  int pid = 0;
  uid_t uid = 0;
  std::string command;  // as the kernel shows it; not trusted
  std::map<Placement, Bytes> held;
};
// Finds all other processes that have memory of the node and that this process
// may inspect (outside.h). Takes milliseconds, or as long as the kernel needs.
// NotFound: `directory` has no node.
absl::StatusOr<std::vector<SimHolder>> FindSimHolders(
    const std::string& directory);

// Changes a node while processes use it, for tests. PermissionDenied unless
// this process belongs to the owner.
class SimNode {
 public:
  static absl::StatusOr<std::unique_ptr<SimNode>> Open(
      const std::string& directory);
  virtual ~SimNode() = default;

  virtual SimConfig config() const = 0;
  // Returns the total and the bytes that living processes use. Memory of dead
  // holders is free.
  virtual absl::StatusOr<MemoryUse> Usage(Placement where) = 0;
  // Makes the `nth` call from now (1 = the next) of driver call `name`
  // ("Create", "CopyAsync", …), in any of the owner's processes, fail with
  // kResourceExhausted. "Copy" is the copy itself, on its stream: the next call
  // on the stream returns its failure.
  virtual absl::Status FailCall(std::string_view name, int nth) = 0;
  // Makes every later call that names this GPU fail with kUnavailable.
  virtual absl::Status LoseGpu(DeviceIndex gpu) = 0;
  virtual absl::Status SetLinkSpeed(std::string_view link,
                                    double h2d_bytes_per_second,
                                    double d2h_bytes_per_second) = 0;
};

}  // namespace sluice::device
