// A simulated GPU node: a directory with shared state.
//
// The directory outlives the processes that use it, the daemon included, as
// hardware would. It holds one mmapped state file, which its owner writes and
// others read: the configuration below, failures to inject, lost GPUs. What
// processes of all users write is the clocks of the links, so that those that
// share a link share its bandwidth.
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
  double h2d_bytes_per_second = 0;  // 0: not throttled
  double d2h_bytes_per_second = 0;
};

struct SimGpu {
  Bytes memory;
  std::string link;  // must name a SimLink; several GPUs may share one
  NumaIndex numa;
};

struct SimConfig {
  std::vector<SimGpu> gpus;
  std::vector<SimLink> links;
  int numa_nodes = 1;
  Bytes host_memory;  // what the node can pin, all NUMA nodes together
  Bytes granularity = KiB(64);  // of physical allocations
};

// Makes the node's directory and state file. The directory may exist, empty or
// with a node in it, which is replaced only if no process uses it:
// FailedPrecondition otherwise (a restarted daemon opens the node instead).
absl::Status CreateSimNode(const std::string& directory,
                           const SimConfig& config);

// A driver for the one process that makes the node's memory (the daemon). What
// is used it counts by itself: nothing that other processes write to the node's
// state changes what it answers. Memory that it did not make counts as used as
// HeldOutside found it last.
absl::StatusOr<std::unique_ptr<Driver>> OpenOwnedSimDriver(
    const std::string& directory);

// The clocks of a node's links, for all processes that are to share them: a
// sealed memfd. The daemon makes it, and gives it to each session.
absl::StatusOr<UniqueFd> MakeSimClocks();
// As OpenSimDriver (driver.h), with these clocks. A process of a user other
// than the node's owner imports memory, but makes none.
absl::StatusOr<std::unique_ptr<Driver>> OpenSimDriver(
    const std::string& directory, const UniqueFd& clocks);

// A process that has memory of a node; what two have is in both.
struct SimHolder {
  int pid = 0;
  uid_t uid = 0;
  std::string command;  // as the kernel shows it, which a process may change
  std::map<Placement, Bytes> held;
};
// All but this process that it may look at, as the kernel says (outside.h). It
// takes milliseconds, or as long as the kernel likes. NotFound: no node there.
absl::StatusOr<std::vector<SimHolder>> FindSimHolders(
    const std::string& directory);

// Settings that tests change while processes run; PermissionDenied for all but
// the owner.
class SimNode {
 public:
  static absl::StatusOr<std::unique_ptr<SimNode>> Open(
      const std::string& directory);
  virtual ~SimNode() = default;

  virtual SimConfig config() const = 0;
  // Bytes that living processes use, and the total. Memory of dead holders is
  // free.
  virtual absl::StatusOr<MemoryUse> Usage(Placement where) = 0;
  // The `nth` call from now (1 = the next) of driver call `name` ("Create",
  // "CopyAsync", …), in any process, fails with kResourceExhausted. "Copy" is
  // the copy itself, on its stream: the fault shows at the next call on it.
  virtual absl::Status FailCall(std::string_view name, int nth) = 0;
  // Every later call that names this GPU fails with kUnavailable.
  virtual absl::Status LoseGpu(DeviceIndex gpu) = 0;
  virtual absl::Status SetLinkSpeed(std::string_view link,
                                    double h2d_bytes_per_second,
                                    double d2h_bytes_per_second) = 0;
};

}  // namespace sluice::device
