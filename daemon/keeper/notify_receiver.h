// The receiving side of sd_notify(3): a datagram socket that gets the senders'
// pids from the kernel, and what a datagram asks for.
//
// Thread safety: none needed; the keeper has one thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// systemd's limit too.
inline constexpr size_t kMaxNotification = 4096;

struct Notification {
  enum class Kind {
    kOther,  // READY=1, STATUS=…: nothing to do
    kPut,
    kRemove,
    kBarrier,
  };
  Kind kind = Kind::kOther;
  std::string name;  // of kPut and kRemove
};

// InvalidArgument: the datagram has two messages, a malformed name
// (IsDescriptorName) or a zero byte, or is too long or empty.
absl::StatusOr<Notification> ParseNotification(std::string_view text);

class NotifyReceiver {
 public:
  struct Datagram {
    pid_t sender = 0;  // from the kernel
    std::string text;
    std::vector<UniqueFd> fds;  // close-on-exec
    bool whole = true;          // false: truncated, or descriptors are missing
  };

  // Makes a socket at `path` that only this user may write to. It replaces a
  // file at `path`, so the caller must have the folder's lock.
  static absl::StatusOr<NotifyReceiver> Bind(const std::string& path);
  ~NotifyReceiver();
  NotifyReceiver(NotifyReceiver&&) = default;

  // Returns nullopt at once if there is no datagram.
  std::optional<Datagram> Receive();
  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  NotifyReceiver(std::string path, UniqueFd socket)
      : path_(std::move(path)), socket_(std::move(socket)) {}

  std::string path_;
  UniqueFd socket_;  // empty if this object was moved from
};

}  // namespace sluice::daemon
