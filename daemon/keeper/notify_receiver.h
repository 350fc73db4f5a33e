// The receiving side of sd_notify(3): a datagram socket that knows who sends.
//
// Thread safety: none needed; the keeper has one thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class NotifyReceiver {
 public:
  struct Datagram {
    pid_t sender = 0;  // as the kernel says
    std::string text;
    std::vector<UniqueFd> fds;  // close-on-exec
    bool whole = true;          // false: cut off, or descriptors are missing
  };

  // A socket at `path` for this user only; what is there is replaced, so hold
  // the folder's lock.
  static absl::StatusOr<NotifyReceiver> Bind(const std::string& path);
  ~NotifyReceiver();
  NotifyReceiver(NotifyReceiver&&) = default;

  // Never waits. nullopt: there is none.
  std::optional<Datagram> Receive();
  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  NotifyReceiver(std::string path, UniqueFd socket)
      : path_(std::move(path)), socket_(std::move(socket)) {}

  std::string path_;
  UniqueFd socket_;  // none: moved from
};

}  // namespace sluice::daemon
