// The sluiced-keeper that holds what this process stores: watches it, and
// replaces one that died.
//
// The new keeper adopts this process (--adopt), which starts it. It holds
// nothing until that is sent again, and starts the next daemon like any keeper.
//
// Thread safety: one thread, but Watch from another.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/store/starter.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class KeeperProcess {
 public:
  struct Options {
    StartingKeeper keeper;
    std::string notify_socket;  // in its runtime directory
    int64_t capacity = 0;
  };
  // Watches this process's parent. A parent that is gone counts as ended.
  static absl::StatusOr<std::unique_ptr<KeeperProcess>> Watch(Options options);

  pid_t pid() const { return pid_; }
  // Readable when the keeper has ended; -1: it had ended before.
  int fd() const { return life_.get(); }
  bool HasEnded() const { return EndsWithin(absl::ZeroDuration()); }
  bool EndsWithin(absl::Duration longest) const;

  // Starts another keeper; a running one that was started here is killed first.
  // It listens a little later, or ends: another keeper may be there.
  absl::Status Replace();

 private:
  explicit KeeperProcess(Options options) : options_(std::move(options)) {}
  // Kills and reaps a keeper that was started here.
  void End();

  const Options options_;
  pid_t pid_ = 0;
  UniqueFd life_;       // a pidfd
  bool child_ = false;  // started here
};

}  // namespace sluice::daemon
