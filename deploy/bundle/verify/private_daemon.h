// The kit's own daemon, and ranks that fill its memory.
// Thread safety: one owner.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/temporary_folder.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"

namespace sluice::verify {

// Runs the kit's own sluiced under its keeper, reachable only by this user.
class PrivateDaemon {
 public:
  struct Pools {
    Bytes gpu;   // of each GPU that this process sees
    Bytes host;  // of each NUMA node
  };
  // Returns when the daemon serves. It logs to this process's standard error.
  static absl::StatusOr<std::unique_ptr<PrivateDaemon>> Start(
      const Pools& pools, absl::Time until);
  ~PrivateDaemon();
  PrivateDaemon(const PrivateDaemon&) = delete;

  std::string socket() const { return folder_.path() + "/session.sock"; }

  // Returns how much of all GPUs is leased.
  absl::StatusOr<Bytes> Leased() const;
  // Kills the daemon, not its keeper, and returns when it is dead.
  absl::Status KillDaemon();
  // Ends both by SIGTERM. DeadlineExceeded: the keeper did not end by `until`.
  // Internal: the keeper failed, or left a file.
  absl::Status End(absl::Time until);

 private:
  PrivateDaemon(TemporaryFolder folder, pid_t keeper)
      : folder_(std::move(folder)), keeper_(keeper) {}
  absl::StatusOr<pid_t> Daemon() const;
  absl::Status AwaitServing(absl::Time until) const;

  const TemporaryFolder folder_;
  pid_t keeper_;  // 0: reaped
};

// A rank, in a process that can be killed, that fills memory of a
// PrivateDaemon.
class Tenant {
 public:
  struct Options {
    std::string socket, job;
    int gpu = 0;  // index of the GPU, and the rank's number
    int ranks = 1;
    std::string name;  // name of the GPU in messages: "GPU 3"
  };
  static absl::StatusOr<std::unique_ptr<Tenant>> Start(const Options& options);
  ~Tenant();
  Tenant(const Tenant&) = delete;

  // Waits until the rank has leased the whole pool of its GPU and a little host
  // memory, and has read back what it filled the GPU's memory with. Internal:
  // the rank reported an error or ended. DeadlineExceeded: no answer.
  absl::Status AwaitFilled(absl::Time until);
  // Checks that the memory is unchanged and can be filled again.
  absl::Status FindSame(absl::Time until);
  void Kill();  // SIGKILL
  // Makes the rank free its memory and end with 0.
  absl::Status End(absl::Time until);

 private:
  Tenant(pid_t pid, UniqueFd socket, std::string name)
      : pid_(pid), socket_(std::move(socket)), name_(std::move(name)) {}
  absl::Status Await(const std::string& word, absl::Time until);

  pid_t pid_;        // 0: reaped
  UniqueFd socket_;  // connected to its standard input and output
  const std::string name_;
};

inline constexpr char kBeATenant[] = "--tenant";

// Runs the rank, by the arguments behind kBeATenant. Returns the exit status.
int BeATenant(const std::vector<std::string>& arguments);

}  // namespace sluice::verify
