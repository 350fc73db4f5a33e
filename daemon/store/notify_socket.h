// The sending side of sd_notify(3). A message is one datagram and may carry a
// descriptor. A barrier confirms that the receiver has read all earlier
// messages.
//
// Thread safety: one thread, but Cancel from any.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class NotifySocket {
 public:
  // `address` is a path, or '@' and an abstract name. InvalidArgument: it is
  // neither, or too long. Does not connect: Send reports a missing listener.
  static absl::StatusOr<std::unique_ptr<NotifySocket>> Make(
      const std::string& address);

  // Sends a message; waits until `deadline` while the queue is full.
  // DeadlineExceeded: it was still full then. Unavailable: there is no
  // listener. Cancelled: Cancel was called.
  absl::Status Send(std::string_view message, absl::Time deadline, int fd = -1);
  // Returns when all earlier messages were read. DeadlineExceeded: they were
  // not read by then; they may be read later, or never. Also returns OK if the
  // store died before it read them, because the kernel then closes its end of
  // the pipe.
  absl::Status Barrier(absl::Time deadline);
  // Ends all present and future waits with Cancelled.
  void Cancel();

 private:
  NotifySocket(std::string address, UniqueFd cancel)
      : address_(std::move(address)), cancel_(std::move(cancel)) {}
  absl::Status ConnectNow();
  // Polls `fd` for at most `longest`. Returns false if it was not ready by
  // then.
  absl::StatusOr<bool> Wait(int fd, short events, absl::Duration longest);
  absl::Status Late(std::string_view what) const;

  const std::string address_;
  const UniqueFd cancel_;  // an eventfd
  // Connected, so that poll can report room. Connected anew after an error,
  // because another process may listen by then.
  UniqueFd socket_;
};

}  // namespace sluice::daemon
