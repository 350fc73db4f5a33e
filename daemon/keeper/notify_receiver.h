// The receiving side of sd_notify(3): datagrams, the pids of their senders as
// the kernel reports them, and what the datagrams ask for.
//
// Thread safety: none needed; the keeper has one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// The bytes of the largest datagram that is accepted, as by systemd.
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

  // Makes a socket at `path` that only this user may write to. Replaces a file
  // at `path`. REQUIRES: the caller has a RuntimeLock on the folder.
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

// The descriptors that the keeper holds for the daemon, by name.
class KeptDescriptors {
 public:
  explicit KeptDescriptors(int64_t capacity) : capacity_(capacity) {}

  // Executes the daemon's message; `fds` came with it. A put replaces a kept
  // descriptor with the same name. Descriptors that are not kept are closed,
  // which is also the answer to a barrier. InvalidArgument: a put does not have
  // exactly one descriptor. ResourceExhausted: no more can be kept.
  absl::Status Apply(const Notification& said, std::vector<UniqueFd> fds);

  const std::map<std::string, UniqueFd>& all() const { return all_; }
  int64_t capacity() const { return capacity_; }

 private:
  const int64_t capacity_;
  std::map<std::string, UniqueFd> all_;
};

}  // namespace sluice::daemon
