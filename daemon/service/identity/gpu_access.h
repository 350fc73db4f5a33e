// Decides which GPUs a process may use: those with device nodes that it can
// open.
//
// The kernel decides which nodes a process can open, by a node's mode and a
// container's device list. The daemon cannot find out what another process can
// open, because a cgroup's device list is a BPF program. So a rank opens the
// nodes and sends the descriptors with its Hello. The daemon identifies one by
// the device's number, or on a simulated node by the file. A descriptor that
// was opened with O_PATH, or not for writing, proves nothing.
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
  // `nodes[i]` is the path of GPU i's node; if it is empty, no peer can prove
  // its access to the GPU. NotFound: there is no such file.
  static absl::StatusOr<GpuAccess> Make(std::vector<std::string> nodes);

  Gpus Shown(std::span<const UniqueFd> shown) const;
  // PermissionDenied in one line if GPU `gpu` is not among `shown`.
  absl::Status May(const Gpus& shown, uint64_t gpu) const;

 private:
  // A device's number, or a file's device and inode.
  using Identity = std::tuple<bool, uint64_t, uint64_t>;
  static absl::StatusOr<Identity> IdentityOf(int fd);

  std::vector<std::string> nodes_;
  std::vector<Identity> identities_;  // of `nodes_`
};

}  // namespace sluice::daemon
