// A sluiced for one run only, with simulated GPUs, in a temporary folder.
//
// It is started through this binary's hidden `guard` command, which asks the
// kernel to end the daemon when the launcher ends, even by kill -9.
// Thread safety: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/train/launch/options.h"
#include "proto/base/temporary_folder.h"
#include "proto/base/units.h"

namespace sluice::train {

// The environment variable in which Start describes the daemon to the ranks.
// Rank 0 prints it, so that a refused run prints one line only.
inline constexpr char kPrivateNote[] = "SLUICE_PRIVATE_NOTE";

class PrivateDaemon {
 public:
  // Starts a daemon and waits until it is ready. Internal: the daemon did not
  // start; the message has the last line of its log. DeadlineExceeded: it is
  // not ready after 30 s. InvalidArgument: as CheckPrivateSizes.
  static absl::StatusOr<std::unique_ptr<PrivateDaemon>> Start(
      const RunOptions& options);
  ~PrivateDaemon();

  std::string socket() const { return folder_.path() + "/session.sock"; }

 private:
  PrivateDaemon(TemporaryFolder folder, pid_t pid)
      : folder_(std::move(folder)), pid_(pid) {}

  TemporaryFolder folder_;
  pid_t pid_;
};

// InvalidArgument: --hbm or --host exceeds `machine`, the real memory behind
// the simulated one.
absl::Status CheckPrivateSizes(const RunOptions& options, Bytes machine);
Bytes MachineMemory();  // at most the limit of this process's cgroups
// Returns the configuration: one GPU per rank, with --hbm each (default 256
// MiB), and host memory of --host (default 1 GiB). `check` tests correctness
// and not limits: its defaults fit any shape of a few thousand tokens, and its
// links have no speed limit. Simulated memory costs nothing until it is
// touched.
std::string PrivateConfig(const RunOptions& options);

// Runs the hidden command `guard PARENT BINARY ARGUMENTS…`. Does not return.
[[noreturn]] void RunGuard(const std::vector<std::string>& arguments);

}  // namespace sluice::train
