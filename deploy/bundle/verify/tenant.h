// A rank that leases memory of a PrivateDaemon and fills it: a process of its
// own, which can be killed.
//
// Thread safety: one owner.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/unique_fd.h"

namespace sluice::verify {

class Tenant {
 public:
  struct Options {
    std::string socket, job;
    int gpu = 0;  // and its rank, of `ranks`
    int ranks = 1;
    std::string name;  // "GPU 3": in messages
  };
  static absl::StatusOr<std::unique_ptr<Tenant>> Start(const Options& options);
  ~Tenant();
  Tenant(const Tenant&) = delete;

  // Until it has the whole pool of its GPU and a little host memory, has filled
  // them and read the same bytes back. Its own error, as it says it; Internal:
  // it is no more; DeadlineExceeded: no word.
  absl::Status AwaitFilled(absl::Time until);
  // What it holds is as it was, and can be filled again. Errors likewise.
  absl::Status FindSame(absl::Time until);
  void Kill();  // SIGKILL
  // It frees what it has and ends with status 0.
  absl::Status End(absl::Time until);

 private:
  Tenant(pid_t pid, UniqueFd socket, std::string name)
      : pid_(pid), socket_(std::move(socket)), name_(std::move(name)) {}
  absl::Status Await(const std::string& word, absl::Time until);

  pid_t pid_;        // 0: it was reaped
  UniqueFd socket_;  // what it reads and writes
  const std::string name_;
};

inline constexpr char kBeATenant[] = "--tenant";

// The other side, in the child: the arguments behind kBeATenant.
int BeATenant(const std::vector<std::string>& arguments);

}  // namespace sluice::verify
