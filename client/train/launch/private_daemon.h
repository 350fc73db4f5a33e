// A sluiced of one's own, for one run: simulated GPUs of the size asked for.
//
// Its runtime folder is temporary and goes with it. It is started through
// this binary's hidden `guard` command, which asks the kernel to end it when
// the launcher ends, so that not even kill -9 of the launcher leaves it.
// Thread safety: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/train/launch/process.h"
#include "proto/base/temporary_folder.h"
#include "proto/base/units.h"

namespace sluice::train {

// The launcher tells its ranks here what their daemon is; rank 0 says it.
inline constexpr char kPrivateNote[] = "SLUICE_PRIVATE_NOTE";

class PrivateDaemon {
 public:
  struct Options {
    int gpus = 1;
    Bytes gpu_memory;       // each
    Bytes host_memory;      // all
    bool throttled = true;  // false: links without a speed limit
  };
  // Waits until it serves. Internal: why it did not start, from its own log.
  static absl::StatusOr<std::unique_ptr<PrivateDaemon>> Start(
      const Options& options);
  ~PrivateDaemon();

  std::string socket() const { return folder_.path() + "/session.sock"; }

 private:
  PrivateDaemon(TemporaryFolder folder, pid_t pid)
      : folder_(std::move(folder)), pid_(pid) {}

  TemporaryFolder folder_;
  pid_t pid_;
};

// The text of the config file: one place to see what a private daemon is.
std::string PrivateConfig(const PrivateDaemon::Options& options);

// The hidden command: `guard PARENT BINARY ARGUMENTS…`. Does not return.
[[noreturn]] void RunGuard(const std::vector<std::string>& arguments);

}  // namespace sluice::train
