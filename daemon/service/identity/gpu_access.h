// Decides which GPUs a process may use: those with device nodes it can open.
//
// The kernel decides which processes may open /dev/nvidia0 (by its mode, or a
// container's device list), and no file tells what it would decide for another
// process: a cgroup's list is a BPF program. So a rank opens the nodes itself
// and sends the descriptors with its Hello. The kernel identifies each: by the
// device's number, or on a simulated node by the file itself. A descriptor that
// was opened only for its path, or not for writing, shows nothing.
//
// Thread safety: const after Make. Nothing here blocks, whatever file system a
// descriptor belongs to.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class GpuAccess {
 public:
  using Gpus = std::set<uint64_t>;  // indices

  GpuAccess() = default;  // every peer may use all GPUs
  // `nodes[i]` is the path of GPU i's node; empty: unknown, so no peer can show
  // it. NotFound: there is no such file.
  static absl::StatusOr<GpuAccess> Make(std::vector<std::string> nodes);

  // Returns the GPUs that have their nodes among `shown`.
  Gpus Shown(std::span<const UniqueFd> shown) const;
  // PermissionDenied in one line if GPU `gpu` is not among `shown`.
  absl::Status May(const Gpus& shown, uint64_t gpu) const;

 private:
  // A device's number, or a file's device and inode.
  using Identity = std::tuple<bool, uint64_t, uint64_t>;
  static absl::StatusOr<Identity> IdentityOf(int fd);

  std::vector<std::string> nodes_;
  std::vector<Identity> identities_;
};

}  // namespace sluice::daemon
